"""The firmware interface, version 1: the one truth that every driver, in any language, follows.

`docs/interface.md` is the written form; `tests/interface/` freezes it as byte vectors.

=============  ===================================================================
`result`       Level Zero result codes and the fault record that travels with them
`handles`      64-bit handles: kind, generation, slot
`frames`       the control frame: a fixed header around one msgpack message
`messages`     every control message, as msgspec structs
`channel`      a connected socket that carries frames and file descriptors
`records`      fixed records in shared memory: signals, queue rings, status page
`commands`     command buffers: how commands are encoded and checked
`blob`         the compiled-model container and its metadata section
`linux`        the few kernel calls that the standard library does not offer
=============  ===================================================================
"""
