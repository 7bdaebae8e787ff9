"""Run-time properties: queue, requests, log, choice of the device."""

from __future__ import annotations

from openvino.properties import WorkloadType
from openvino.properties.hint import Priority
from openvino.properties.log import Level as LogLevel

from softnpu.plugin.properties.kinds import Text, Whole, choice
from softnpu.plugin.properties.record import Level, Property, Use, switch

RUN_PROPERTIES = (
    Property(
        name="MODEL_PRIORITY",
        kind=choice(
            {"LOW": Priority.LOW, "MEDIUM": Priority.MEDIUM, "HIGH": Priority.HIGH},
            {"DEFAULT": Priority.MEDIUM},
        ),
        default=Priority.MEDIUM,
        use=Use.QUEUE,
        doc="priority of the model's queue: the device takes the highest that waits first",
    ),
    Property(
        name="WORKLOAD_TYPE",
        kind=choice({"DEFAULT": WorkloadType.DEFAULT, "EFFICIENT": WorkloadType.EFFICIENT}),
        default=WorkloadType.DEFAULT,
        use=Use.QUEUE,
        live=True,
        doc="EFFICIENT: later inferences run in the background, below every priority. A compiled model can"
        " change it at any time",
    ),
    switch(
        "NPU_TURBO",
        Use.QUEUE,
        "both sides of the model's queue wait busily for up to 15 ms before they sleep; clocks are fixed",
    ),
    Property(
        name="PERFORMANCE_HINT_NUM_REQUESTS",
        kind=Whole(0),
        default=1,
        use=Use.PLUGIN,
        doc="requests that the application will use: once set, OPTIMAL_NUMBER_OF_INFER_REQUESTS is not more."
        " 0 sets no bound",
    ),
    switch(
        "NPU_MEASURE_OPTIMAL_REQUESTS",
        Use.PLUGIN,
        "the compiled model answers OPTIMAL_NUMBER_OF_INFER_REQUESTS from NPU_MEASURED_THROUGHPUT: the"
        " fewest requests with 95 % of the best throughput. Not in OpenVINO",
    ),
    switch(
        "NPU_RUN_INFERENCES_SEQUENTIALLY",
        Use.RECORDED,
        "inferences of the model run one after the other, in the order in which they were started; no"
        " effect, that is always so: a model has one queue, and a queue runs in order",
    ),
    switch(
        "EXCLUSIVE_ASYNC_REQUESTS",
        Use.RECORDED,
        "requests of the model do not run at the same time; no effect, as with"
        " NPU_RUN_INFERENCES_SEQUENTIALLY",
    ),
    switch(
        "NPU_DEFER_WEIGHTS_LOAD",
        Use.PLUGIN,
        "the device loads the model when its first request is created, not when it is compiled or"
        " imported; the weights of an import are compared with their digests only then",
    ),
    switch(
        "NPU_DISABLE_IDLE_MEMORY_PRUNING",
        Use.QUEUE,
        "keeps the memory of idle models, of all models of the device in this process; otherwise models that"
        " load in a moment leave the device after 30 s",
    ),
    switch(
        "ENABLE_CPU_PINNING",
        Use.RECORDED,
        "pins threads of the plugin; no effect, inferences run in the device",
    ),
    Property(
        name="LOG_LEVEL",
        kind=choice(
            {
                "LOG_NONE": LogLevel.NO,
                "LOG_ERROR": LogLevel.ERR,
                "LOG_WARNING": LogLevel.WARNING,
                "LOG_INFO": LogLevel.INFO,
                "LOG_DEBUG": LogLevel.DEBUG,
                "LOG_TRACE": LogLevel.TRACE,
            }
        ),
        default=LogLevel.NO,
        use=Use.COMPILER,
        doc="level of Python's logger `softnpu.plugin`, in the whole process, or of one model's messages; the"
        " compiler's log is among them. OV_NPU_LOG_LEVEL gives the default. Until the level is set, Python's"
        " own configuration holds",
    ),
    Property(
        name="DEVICE_ID",
        kind=Text("empty, the number of a device, or its platform"),
        default="",
        level=Level.CORE,
        use=Use.PLUGIN,
        doc="which device `NPU` means: its number or its platform, empty for the first",
    ),
)
