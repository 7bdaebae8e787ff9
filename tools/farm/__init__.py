"""`softnpu farm`: emulated devices of many machines on Ray. `plugin/farm` is `softnpu.farm`, for programs."""
