"""`softnpu farm`: emulated devices of many machines on Ray. `public/farm` is `softnpu.farm`, for programs."""
