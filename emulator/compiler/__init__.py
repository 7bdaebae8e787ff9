"""The compiler worker: turns a serialised model into a blob, and checks blobs that come from outside.

It is a program of its own (`python -m softnpu.emulator.compiler FD PARENT_PID`), because it reads untrusted
input and may take long. The supervisor starts it, speaks `interface.compiling` with it over the
channel at descriptor FD, and kills it to cancel a job. This package stays light: `openvino` is
imported by the worker only, by the first job that needs it.

=============  ===================================================================
`worker`       the loop: one job after the other, one outcome each
`jobs`         which job is done by what
`runtime`      the OpenVINO runtime of the worker; the form of a finished job
`compilation`  a compile job: the cache, or else `building`
`building`     IR to blob, step by step
`native`       blobs from outside checked, blobs written with all weights
`query`        which layers are supported
`options`      the properties that the compiler understands
`build_flags`  the line of flags that programs give
`arguments`    precisions and layouts of the flags, applied to a model
`ir`           reading an IR over mapped weights, reshaping it
`checks`       what a model must be to become a blob; its arguments as metadata
`canonical`    a model in the form that does not depend on where its weights lie
`constants`    the constants of a model in memory; its XML without weights
`digests`      digest of the sources of weights
`cached`       the compile job and the cache
`cache`        the cache of compiled models, on disk
`files`        descriptors of clients: checked, read, mapped
`stages`       progress and build log of one job
`faults`       exceptions of others as typed faults
=============  ===================================================================
"""
