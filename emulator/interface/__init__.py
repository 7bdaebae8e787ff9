"""The firmware interface, version 1: what drivers and daemon must agree on, and nothing else.

`docs/interface.md` is the written form; `softnpu.tools.generators.wire_schema` writes the C++ form.

=============  =====================================================================
`version`      the version of the interface
`environment`  environment variables that both sides honour
`endpoint`     where a daemon is found, and whose socket it is
`daemon_files` who may own the files of a daemon
`result`       Level Zero result codes, and the `ErrorInfo` that travels with them
`handles`      64-bit handles: kind, generation, slot
`frames`       the control frame: a fixed header around one msgpack message
`channel`      a connected socket that carries frames and file descriptors
`messages`     every control message; `status_messages` and `injection_messages` are parts
`injections`   faults to inject: kinds, values, their text form
`layout`       how fixed records are described
`records`      fixed records in shared memory: fences, events, ring, status page
`shared`       fences and events in mapped memory
`ring`         the two ends of a ring
`commands`     command buffers: how commands are encoded and checked
`profiling`    the profile of an inference
=============  =====================================================================
"""
