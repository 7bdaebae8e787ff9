"""The compiler worker: turns a serialised model into a blob, and checks blobs that come from outside.

It is a program of its own (`python -m softnpu.driver.compiler FD PARENT_PID`), because it reads untrusted
input and may take long. The supervisor starts it, speaks `interface.compiling` with it over the
channel at descriptor FD, and kills it to cancel a job. This package stays light: `openvino` is
imported by the worker only, after its channel is set up.

=============  ===================================================================
`worker`       the loop: one job after the other, one outcome each
`jobs`         what a compile job and an import job do, step by step
`options`      the properties that the compiler understands
`ir`           reading an IR over mapped weights, reshaping it
`checks`       what a model must be to become a blob; its arguments as metadata
`files`        descriptors of clients: checked, read, mapped, digested
`stages`       progress and build log of one job
`faults`       exceptions of others as typed faults
=============  ===================================================================
"""
