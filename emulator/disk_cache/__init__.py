"""The cache of compiled models: a directory of blobs that many processes share.

`cache` is what the compiler uses, `maintenance` what `softnpu cache` does. OpenVINO is not needed.
"""
