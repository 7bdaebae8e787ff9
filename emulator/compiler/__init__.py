"""The compiler worker: turns a serialised model into a blob, and checks blobs that come from outside.

It is a program of its own (`python -m softnpu.emulator.compiler FD PARENT_PID`), because it reads untrusted
input and may take long. The supervisor starts it, speaks `links.compiler` with it over the channel at
descriptor FD, and kills it to cancel a job. Sandboxed processes look at the models.

=====================  =============================================================
`worker`               the worker's process: dispatch of jobs
`caching`              the worker's own part of a job: caches, the extension for f16
`sandboxed`            sandboxed processes for the rest, one per job
`fork_server`          the process that forks them
`job_loop`             the loop of both: one job after the other, one outcome each
`compile_job`          a compile job: `pipeline`, and its answer
`onnx_file`            reading a model file in ONNX
`ir_file`              a file in memory, for the XML that OpenVINO writes
`compile_request`      the request and the result of a compile job
`job_cache`            the compile job and the cache
`model_cache`          the cache of compiled models, on disk
`pipeline`             IR to blob, step by step
`ir`                   reading an IR over mapped weights, reshaping it
`arguments`            precisions and layouts of the build flags, applied to a model
`states`               states as arguments, the graph of their initial values
`dynamic_states`       states whose shape changes
`dynamic`              dynamic dimensions and shape tensors
`weights_separation`   weights as inputs of the main graph
`checks`               requirements on a model; its metadata
`plain_operations`     models whose operations need no check
`known_sizes`          sizes computed of known shapes, as constants
`canonical`            the form independent of the location of the weights
`constants`            the constants of a model in memory; its XML without weights
`native_blob`          check of imported blobs, export of blobs with all weights
`checked_blobs`        blobs that need no second check
`query`                which layers are supported
`options`              the properties that the compiler understands
`option_values`        the values of a property
`build_flags`          the line of flags that programs pass
`older_clients`        what older releases of OpenVINO say in it
`files`                descriptors of clients: checked, read, mapped
`digests`              digest of the sources of weights
`runtime`              the OpenVINO runtime of the worker; the result of a job
`stages`               progress and build log of one job
`error_info`           exceptions of others as error records
=====================  =============================================================
"""
