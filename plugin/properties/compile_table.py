"""Properties of compilation, caching, export and import."""

from __future__ import annotations

import os

import openvino as ov
from openvino.properties import CacheMode
from openvino.properties.hint import ExecutionMode, PerformanceMode
from openvino.properties.intel_npu import CompilerType

from softnpu.emulator.arithmetic.settings import INFINITY, OVERFLOW, SATURATE
from softnpu.plugin.properties import mode_params
from softnpu.plugin.properties.hints import DMA_ENGINES_MAX
from softnpu.plugin.properties.kinds import INT_MAX, PathKind, Text, Whole, choice, words
from softnpu.plugin.properties.record import Property, Use, switch

COMPILE_PROPERTIES = (
    Property(
        name="INFERENCE_PRECISION_HINT",
        kind=choice({"f32": ov.Type.f32, "bf16": ov.Type.bf16, "f16": ov.Type.f16}),
        default=ov.Type.f32,
        use=Use.COMPILER,
        cached=True,
        doc="precision of the arithmetic. f16 is the device's, with the same roundings on every host"
        " ([arithmetic.md](arithmetic.md)); bf16 is the host's, refused when its processor lacks it",
    ),
    Property(
        name=OVERFLOW,
        kind=words(SATURATE, INFINITY),
        default=SATURATE,
        use=Use.COMPILER,
        cached=True,
        doc="what a result beyond the range of f16 becomes: 65504 with its sign, as the device is said to do,"
        " or infinity as IEEE 754 has it. Only for models in f16. Not in OpenVINO",
    ),
    Property(
        name="EXECUTION_MODE_HINT",
        kind=choice({"ACCURACY": ExecutionMode.ACCURACY, "PERFORMANCE": ExecutionMode.PERFORMANCE}),
        default=ExecutionMode.ACCURACY,
        use=Use.COMPILER,
        cached=True,
        doc="handed to OpenVINO's CPU runtime, which does the arithmetic",
    ),
    Property(
        name="PERFORMANCE_HINT",
        kind=choice(
            {"LATENCY": PerformanceMode.LATENCY, "THROUGHPUT": PerformanceMode.THROUGHPUT},
            {"UNDEFINED": PerformanceMode.LATENCY},
        ),
        default=PerformanceMode.LATENCY,
        use=Use.COMPILER,
        cached=True,
        doc="chooses tiles, DMA engines and the number of requests by the tables. LATENCY computes one"
        " inference at a time with all threads, THROUGHPUT up to four side by side that share them, which"
        " takes several requests in flight. UNDEFINED is accepted and means LATENCY: this OpenVINO has no"
        " such value to return",
    ),
    Property(
        name="INFERENCE_NUM_THREADS",
        kind=Whole(0),
        default=0,
        use=Use.COMPILER,
        cached=True,
        doc="threads of the host for one inference, 0 for all cores. Not a property of the real NPU",
    ),
    switch(
        "PERF_COUNT",
        Use.COMPILER,
        "compiles the model to be profiled: `get_profiling_info` has the times of every layer",
        cached=True,
    ),
    Property(
        name="NPU_PROFILING_CLOCK",
        kind=choice({"HOST": "HOST", "DEVICE": "DEVICE"}),
        default="HOST",
        use=Use.COMPILER,
        cached=True,
        doc="clock of the profile: HOST has what this machine took, DEVICE what `softnpu predict` says that"
        " silicon takes. A daemon with `--clock device` has the modelled clock everywhere. Not a property of"
        " the real NPU",
    ),
    Property(
        name="NPU_PLATFORM",
        kind=Text("a platform such as 4000, or AUTO_DETECT"),
        default="AUTO_DETECT",
        use=Use.COMPILER,
        cached=True,
        doc="platform to compile for, which need not be that of the device: the model can then be"
        " exported, and run on a device of its platform",
    ),
    Property(
        name="NPU_TILES",
        kind=Whole(-1),
        default=-1,
        use=Use.COMPILER,
        cached=True,
        doc="tiles to compile for, at most NPU_MAX_TILES; -1 and 0 leave them to PERFORMANCE_HINT. A compiled"
        " model reports its number, which changes nothing else: a device runs one inference at a time",
    ),
    Property(
        name="NPU_MAX_TILES",
        kind=Whole(-1),
        use=Use.PLUGIN,
        cached=True,
        doc="most tiles that NPU_TILES may ask for; -1 and 0 mean all that the platform has",
    ),
    Property(
        name="NPU_DMA_ENGINES",
        kind=Whole(-1, DMA_ENGINES_MAX),
        default=-1,
        use=Use.RECORDED,
        cached=True,
        doc="DMA engines to compile for; no effect, the emulator has none. A compiled model reports what the"
        " table gives",
    ),
    Property(
        name="NPU_STEPPING",
        kind=Whole(-1),
        use=Use.RECORDED,
        cached=True,
        doc="revision of the device to compile for; no effect, revisions do not differ here",
    ),
    Property(
        name="NPU_COMPILATION_MODE_PARAMS",
        kind=Text("text of NAME=VALUE parameters", mode_params.parse),
        default="",
        use=Use.COMPILER,
        cached=True,
        doc="optimization-level=0|1|2 has no effect, OpenVINO optimises in one way;"
        " performance-hint-override=latency gives a model compiled for LATENCY all tiles;"
        " compute-layers-with-higher-precision=Sqrt,Power,... names the layers of a model in f16 that stay in"
        " f32",
    ),
    Property(
        name="NPU_COMPILER_TYPE",
        kind=choice({"DRIVER": CompilerType.DRIVER, "PREFER_PLUGIN": CompilerType.PREFER_PLUGIN}),
        default=CompilerType.DRIVER,
        use=Use.PLUGIN,
        cached=True,
        doc="the driver's compiler is the only one: PREFER_PLUGIN ends there too, PLUGIN is refused",
    ),
    Property(
        name="NPU_BACKEND_COMPILATION_PARAMS",
        kind=Text(),
        default="",
        use=Use.RECORDED,
        cached=True,
        doc="parameters of the real compiler's back end; no effect, there is none",
    ),
    switch(
        "NPU_COMPILER_DYNAMIC_QUANTIZATION",
        Use.RECORDED,
        "lets the real compiler quantise; no effect, numbers keep their precision",
        cached=True,
    ),
    switch(
        "NPU_QDQ_OPTIMIZATION",
        Use.RECORDED,
        "optimises quantised models on the real compiler; no effect, OpenVINO's CPU runtime does its own",
        cached=True,
    ),
    switch("NPU_QDQ_OPTIMIZATION_AGGRESSIVE", Use.RECORDED, "as NPU_QDQ_OPTIMIZATION", cached=True),
    Property(
        name="COMPILATION_NUM_THREADS",
        kind=Whole(1),
        default=os.cpu_count() or 1,
        use=Use.RECORDED,
        doc="threads of a compilation; no effect, the compiler works with one. The default is the number of"
        " cores",
    ),
    Property(
        name="NPU_BATCH_MODE",
        aliases=("BATCH_MODE",),
        kind=words("AUTO", "COMPILER", "PLUGIN"),
        default="AUTO",
        use=Use.PLUGIN,
        cached=True,
        doc="who splits a batch. PLUGIN: the device has the model for one sample and executes it for each,"
        " with tensors of any batch; refused with the reason if it cannot be split. COMPILER: the batch as it"
        " is."
        " AUTO: PLUGIN if it is proven that samples are independent, else COMPILER; a compiled model with a"
        " batch reports which",
    ),
    switch(
        "NPU_DYNAMIC_SHAPE_TO_STATIC",
        Use.COMPILER,
        "compiles inputs with bounds as if their upper bounds were their shape; an input without"
        " bounds is refused",
        cached=True,
    ),
    switch(
        "NPU_STRICT",
        Use.COMPILER,
        "refuses what the real NPU's compiler is known to refuse, with the source of the rule; `query_model`"
        " leaves such layers out. Always so with a strict daemon (`softnpu daemon --strict`). Not in"
        " OpenVINO",
        cached=True,
    ),
    Property(
        name="NPU_ENABLE_STRIDES_FOR",
        kind=Text("names of inputs and outputs, separated by commas"),
        default="",
        use=Use.COMPILER,
        cached=True,
        doc="inputs and outputs whose tensors may have gaps: the model is compiled for that. Requests of the"
        " plugin still copy such tensors",
    ),
    Property(
        name="NPU_COMPILATION_MODE",
        kind=Text(),
        default="",
        use=Use.RECORDED,
        cached=True,
        doc="pipeline of the real compiler; no effect, there is one",
    ),
    switch(
        "NPU_BYPASS_UMD_CACHING",
        Use.PLUGIN,
        "compiles again: the driver neither reads its cache of compiled models nor adds to it",
    ),
    Property(
        name="CACHE_DIR",
        kind=PathKind(),
        default="",
        use=Use.PLUGIN,
        doc="directory of exported models: the same model is imported from there in place of being"
        " compiled. The driver's cache is bypassed then",
    ),
    Property(
        name="CACHE_MODE",
        kind=choice({"OPTIMIZE_SPEED": CacheMode.OPTIMIZE_SPEED, "OPTIMIZE_SIZE": CacheMode.OPTIMIZE_SIZE}),
        default=CacheMode.OPTIMIZE_SPEED,
        use=Use.PLUGIN,
        doc="whether models in CACHE_DIR have their weights inside (speed) or not (size)",
    ),
    switch(
        "ENABLE_WEIGHTLESS",
        Use.PLUGIN,
        "`export_model` leaves the weights where they are, and notes where that is",
    ),
    switch(
        "NPU_EXPORT_RAW_BLOB",
        Use.PLUGIN,
        "`export_model` writes the driver's blob alone, without the plugin's metadata",
    ),
    switch(
        "NPU_IMPORT_RAW_BLOB",
        Use.PLUGIN,
        "`import_model` takes the driver's blob at the beginning of a file, and ignores metadata"
        " after it: ports are those of the graph",
    ),
    Property(
        name="WEIGHTS_PATH",
        kind=PathKind(),
        default="",
        use=Use.PLUGIN,
        doc="file of weights, the .bin of an IR or safetensors: for an exported model without them; and"
        " for a compilation, which takes constants with the same bytes from there by descriptor",
    ),
    switch(
        "NPU_USE_BASE_MODEL_SERIALIZER",
        Use.PLUGIN,
        "a model in memory goes to the compiler with copies of all its weights. NO: by their address,"
        " so that those that are mapped from a file are not copied. The default is that of the better way",
    ),
    Property(
        name="NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD",
        kind=Whole(0, INT_MAX),
        default=0,
        use=Use.PLUGIN,
        doc="without the base serialiser: constants of fewer bytes are copied all the same",
    ),
)
