"""What each property of the plugin does, for `docs/properties.md`; no program needs it."""

from __future__ import annotations

from typing import Final

EFFECTS: Final = {
    "AVAILABLE_DEVICES": "what can follow `NPU.`: the platform of the only device, or the numbers of several",
    "CACHE_DIR": (
        "directory of exported models: the same model is imported from there in place of being "
        "compiled. The driver's cache is bypassed then"
    ),
    "CACHE_ENCRYPTION_CALLBACKS": (
        "encrypts what `export_model` and CACHE_DIR write, and decrypts what `import_model` and CACHE_DIR "
        "read; the driver and the device then keep nothing of the model on disk"
    ),
    "CACHE_MODE": "whether models in CACHE_DIR have their weights inside (speed) or not (size)",
    "CACHING_PROPERTIES": (
        "the properties that OpenVINO's cache builds its key of. Names can be added to those that "
        "change a compiled model, not taken away: the cache would return wrong models"
    ),
    "COMPATIBILITY_CHECK": (
        "with the argument RUNTIME_REQUIREMENTS: whether a model that needs this can run on the device. "
        "NOT_APPLICABLE without it. `Core.check_compatibility` returns the reason"
    ),
    "COMPILATION_NUM_THREADS": (
        "threads of a compilation; no effect, the compiler works with one. The default is the number of cores"
    ),
    "DEVICE_ARCHITECTURE": "the emulated platform, such as 4000",
    "DEVICE_GOPS": (
        "billions of operations a second by element type, of the real device: clock, tiles and width of "
        "the platform. What is reached here depends on the host"
    ),
    "DEVICE_ID": "which device `NPU` means: its number or its platform, empty for the first",
    "DEVICE_PCI_INFO": "where the real device sits; the bus is the number of the device",
    "DEVICE_TYPE": "INTEGRATED, as the real device",
    "DEVICE_UUID": "the device's identity, 32 hexadecimal digits",
    "ENABLE_CPU_PINNING": "pins threads of the plugin; no effect, inferences run in the device",
    "ENABLE_WEIGHTLESS": "`export_model` leaves the weights where they are, and notes where that is",
    "EXCLUSIVE_ASYNC_REQUESTS": (
        "requests of the model do not run at the same time; no effect, as with "
        "NPU_RUN_INFERENCES_SEQUENTIALLY"
    ),
    "EXECUTION_DEVICES": "the name of the device",
    "EXECUTION_MODE_HINT": "handed to OpenVINO's CPU runtime, which does the arithmetic",
    "FULL_DEVICE_NAME": "the name that the real device of the platform has",
    "INFERENCE_NUM_THREADS": (
        "threads of the host for one inference, 0 for all cores. Not a property of the real NPU"
    ),
    "INFERENCE_PRECISION_HINT": (
        "precision of the arithmetic. f16 is the device's, with the same roundings on every host "
        "([arithmetic.md](arithmetic.md)); bf16 is the host's, refused when its processor lacks it"
    ),
    "LOADED_FROM_CACHE": "whether the model came from a cache of compiled models",
    "LOG_LEVEL": (
        "level of Python's logger `softnpu.plugin`, in the whole process, or of one model's messages; "
        "the compiler's log is among them. OV_NPU_LOG_LEVEL gives the default. Until the level is set, "
        "Python's own configuration holds"
    ),
    "MODEL_PRIORITY": "priority of the model's queue: the device takes the highest that waits first",
    "NETWORK_NAME": "the name of the model",
    "NPU_BACKEND_COMPILATION_PARAMS": "parameters of the real compiler's back end; no effect, there is none",
    "NPU_BATCH_MODE": (
        "who splits a batch. PLUGIN: the device has the model for one sample and executes it for each, "
        "with tensors of any batch; refused with the reason if it cannot be split. COMPILER: the batch "
        "as it is. AUTO: PLUGIN if it is proven that samples are independent, else COMPILER; a compiled "
        "model with a batch reports which"
    ),
    "NPU_BYPASS_UMD_CACHING": (
        "compiles again: the driver neither reads its cache of compiled models nor adds to it"
    ),
    "NPU_COMPILATION_MODE": "pipeline of the real compiler; no effect, there is one",
    "NPU_COMPILATION_MODE_PARAMS": (
        "optimization-level=0|1|2 has no effect, OpenVINO optimises in one way; "
        "performance-hint-override=latency gives a model compiled for LATENCY all tiles; "
        "compute-layers-with-higher-precision=Sqrt,Power,... names the layers of a model in f16 that "
        "stay in f32"
    ),
    "NPU_COMPILER_DYNAMIC_QUANTIZATION": (
        "lets the real compiler quantise; no effect, numbers keep their precision"
    ),
    "NPU_COMPILER_TYPE": (
        "the driver's compiler is the only one: PREFER_PLUGIN ends there too, PLUGIN is refused"
    ),
    "NPU_COMPILER_VERSION": "version of the driver's compiler, major in the upper 16 bits",
    "NPU_DEFER_WEIGHTS_LOAD": (
        "the device loads the model when its first request is created, not when it is compiled or "
        "imported; the weights of an import are compared with their digests only then"
    ),
    "NPU_DEVICE_ALLOC_MEM_SIZE": (
        "bytes of device memory that this process has allocated, with the blobs and weights of its "
        "models that are loaded, equal ones once"
    ),
    "NPU_DEVICE_TOTAL_MEM_SIZE": "bytes of device memory in all",
    "NPU_DISABLE_IDLE_MEMORY_PRUNING": (
        "keeps the memory of idle models, of all models of the device in this process; otherwise models "
        "that load in a moment leave the device after 30 s"
    ),
    "NPU_DMA_ENGINES": (
        "DMA engines to compile for; no effect, the emulator has none. A compiled model reports what "
        "the table gives"
    ),
    "NPU_DRIVER_VERSION": "version of the user-mode driver",
    "NPU_DYNAMIC_SHAPE_TO_STATIC": (
        "compiles inputs with bounds as if their upper bounds were their shape; an input without bounds "
        "is refused"
    ),
    "NPU_ENABLE_STRIDES_FOR": (
        "inputs and outputs whose tensors may have gaps: the model is compiled for that. Requests of "
        "the plugin still copy such tensors"
    ),
    "NPU_EXPORT_RAW_BLOB": "`export_model` writes the driver's blob alone, without the plugin's metadata",
    "NPU_F16_OVERFLOW": (
        "what a result beyond the range of f16 becomes: 65504 with its sign, as the device is said to "
        "do, or infinity as IEEE 754 has it. Only for models in f16. Not in OpenVINO"
    ),
    "NPU_IMPORT_RAW_BLOB": (
        "`import_model` takes the driver's blob at the beginning of a file, and ignores metadata after "
        "it: ports are those of the graph"
    ),
    "NPU_KERNELS_FOR": (
        "own kernels that compute standard operations of the model, as `Gelu=my.domain.Gelu`: all of a type. "
        "The kernel is one that `add_extension` was given, and has to know all attributes of the operation; "
        "what does not fit is refused ([kernels.md](kernels.md)). Not in OpenVINO"
    ),
    "NPU_KERNEL_TIMEOUT_MS": (
        "the longest time of a run of an own kernel, which is ended then; 0 is half of `--tdr-ms` of the "
        "daemon, and the most. Not in OpenVINO"
    ),
    "NPU_MAX_TILES": "most tiles that NPU_TILES may ask for; -1 and 0 mean all that the platform has",
    "NPU_MEASURED_THROUGHPUT": (
        "inferences a second with 1, 2, 4 and 8 infer requests in flight. The first question measures, "
        "for at most 2 s and one inference; fewer counts if the model is slow. Not in OpenVINO"
    ),
    "NPU_MEASURE_OPTIMAL_REQUESTS": (
        "the compiled model answers OPTIMAL_NUMBER_OF_INFER_REQUESTS from NPU_MEASURED_THROUGHPUT: the "
        "fewest requests with 95 % of the best throughput. Not in OpenVINO"
    ),
    "NPU_PLATFORM": (
        "platform to compile for, which need not be that of the device: the model can then be exported, "
        "and run on a device of its platform"
    ),
    "NPU_PROFILING_CLOCK": (
        "clock of the profile: HOST has what this machine took, DEVICE what `softnpu predict` says that "
        "silicon takes. A daemon with `--clock device` has the modelled clock everywhere. Not a "
        "property of the real NPU"
    ),
    "NPU_QDQ_OPTIMIZATION": (
        "optimises quantised models on the real compiler; no effect, OpenVINO's CPU runtime does its own"
    ),
    "NPU_QDQ_OPTIMIZATION_AGGRESSIVE": "as NPU_QDQ_OPTIMIZATION",
    "NPU_RUN_INFERENCES_SEQUENTIALLY": (
        "inferences of the model run one after the other, in the order in which they were started; no "
        "effect, that is always so: a model has one queue, and a queue runs in order"
    ),
    "NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD": (
        "without the base serialiser: constants of fewer bytes are copied all the same"
    ),
    "NPU_STEPPING": "revision of the device to compile for; no effect, revisions do not differ here",
    "NPU_STRICT": (
        "refuses what the real NPU's compiler is known to refuse, with the source of the rule; "
        "`query_model` leaves such layers out. Always so with a strict daemon (`softnpu daemon "
        "--strict`). Not in OpenVINO"
    ),
    "NPU_TILES": (
        "tiles to compile for, at most NPU_MAX_TILES; -1 and 0 leave them to PERFORMANCE_HINT. A "
        "compiled model reports its number, which changes nothing else: a device runs one inference at "
        "a time"
    ),
    "NPU_TURBO": (
        "both sides of the model's queue wait busily for up to 15 ms before they sleep; clocks are fixed"
    ),
    "NPU_USE_BASE_MODEL_SERIALIZER": (
        "a model in memory goes to the compiler with copies of all its weights. NO: by their address, "
        "so that those that are mapped from a file are not copied. The default is that of the better "
        "way"
    ),
    "NUM_STREAMS": "always 1; a model has one queue",
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS": (
        "by the table for the platform and PERFORMANCE_HINT, at most PERFORMANCE_HINT_NUM_REQUESTS if "
        "that is set; of a model with NPU_MEASURE_OPTIMAL_REQUESTS: as measured"
    ),
    "OPTIMIZATION_CAPABILITIES": (
        "the precisions in which the device computes: FP32 and FP16, and BF16, INT8 if the host's "
        "processor has them"
    ),
    "PERFORMANCE_HINT": (
        "chooses tiles, DMA engines and the number of requests by the tables. LATENCY computes one "
        "inference at a time with all threads, THROUGHPUT up to four side by side that share them, "
        "which takes several requests in flight. UNDEFINED is accepted and means LATENCY: this OpenVINO "
        "has no such value to return"
    ),
    "PERFORMANCE_HINT_NUM_REQUESTS": (
        "requests that the application will use: once set, OPTIMAL_NUMBER_OF_INFER_REQUESTS is not "
        "more. 0 sets no bound"
    ),
    "PERF_COUNT": "compiles the model to be profiled: `get_profiling_info` has the times of every layer",
    "RANGE_FOR_ASYNC_INFER_REQUESTS": "(1, 8, 1): lowest, highest, step. Not a limit",
    "RANGE_FOR_STREAMS": "(1, 1): lowest, highest. Streams are not used",
    "RUNTIME_REQUIREMENTS": (
        "what the model needs to run, as `platform=4000;blob=1.0;precision=f32;opset=13`; also in every "
        "exported file"
    ),
    "SUPPORTED_CONFIG_KEYS": "the names of SUPPORTED_PROPERTIES that are RW",
    "SUPPORTED_METRICS": "the names of SUPPORTED_PROPERTIES that are RO",
    "SUPPORTED_PROPERTIES": "every property by name, and RO or RW",
    "WEIGHTS_PATH": (
        "file of weights, the .bin of an IR or safetensors: for an exported model without them; and for "
        "a compilation, which takes constants with the same bytes from there by descriptor"
    ),
    "WORKLOAD_TYPE": (
        "EFFICIENT: later inferences run in the background, below every priority. A compiled model can "
        "change it at any time"
    ),
}
