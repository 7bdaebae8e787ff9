"""The firmware interface, version 1: exactly what drivers and daemon must agree on.

`docs/interface.md` is the specification; `softnpu.tools.generators.wire_schema` generates the C++ form.

=============  =====================================================================
`version`      the version of the interface
`environment`  environment variables that both sides honour
`endpoint`     where to find a daemon, and the owner of its socket
`daemon_files` who may own the files of a daemon
`result`       Level Zero result codes, and the `ErrorInfo` sent with them
`handles`      64-bit handles: kind, generation, slot
`frames`       the control frame: a fixed header around one msgpack message
`channel`      a connected socket that carries frames and file descriptors
`messages`     every control message; `status_messages` and `injection_messages` are parts
`injections`   faults to inject: kinds, values, their text form
`layout`       the description of fixed records
`records`      fixed records in shared memory: fences, events, ring, status page
`shared`       fences and events in mapped memory
`ring`         the two ends of a ring
`commands`     command buffers: encoding and checks
`profiling`    the profile of an inference
=============  =====================================================================
"""
