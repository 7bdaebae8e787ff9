"""Generation on the NPU: OpenVINO's NPUW splits a language model into static parts for the driver."""

from __future__ import annotations

from tests.native.conftest import RunCases

# what the pipeline of OpenVINO GenAI sets for an NPU; the CPU device gets the model unchanged
GENERATE = """
from tests.native.language_model import VOCABULARY, language_model
CONFIG = {
    "NPU_USE_NPUW": "YES", "NPUW_LLM": "YES", "NPUW_LLM_BATCH_DIM": 0, "NPUW_LLM_SEQ_LEN_DIM": 2,
    "NPUW_LLM_MAX_PROMPT_LEN": 64, "NPUW_LLM_MIN_RESPONSE_LEN": 64,
}
ov.save_model(language_model(), sys.argv[2] + "/model.xml", compress_to_fp16=False)
def generated(compiled, prompt, count):
    request, names = compiled.create_infer_request(), {port.any_name for port in compiled.inputs}
    tokens, given, total = [], prompt, 0
    for _ in range(count):
        total += given.shape[1]
        data = {
            "input_ids": given, "attention_mask": np.ones((1, total), np.int64),
            "position_ids": np.arange(total - given.shape[1], total)[None], "beam_idx": np.zeros(1, np.int32),
        }
        logits = request.infer({name: value for name, value in data.items() if name in names})["logits"]
        tokens.append(int(logits[0, -1].argmax()))
        given = np.array([[tokens[-1]]])
    return tokens
model = core.read_model(sys.argv[2] + "/model.xml")
reference = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
compiled = core.compile_model(core.read_model(sys.argv[2] + "/model.xml"), "NPU", CONFIG)
for length in (5, 12, 31):
    prompt = rng.integers(2, VOCABULARY, (1, length))
    found, expected = generated(compiled, prompt, 16), generated(reference, prompt, 16)
    assert found == expected, (length, found, expected)
"""


NPUW = """
for config in ({}, {"NPUW_DEVICES": "NPU"}, {"NPUW_FOLD": "YES", "NPUW_ONLINE_PIPELINE": "REP"}):
    compiled, image = core.compile_model(digits(), "NPU", {"NPU_USE_NPUW": "YES", **config}), images()
    for _ in range(3):
        # it passes weights and what goes between its parts as f16
        assert np.allclose(compiled([image])[0], on_cpu(digits(), [image])[0], atol=2e-3)
"""


def test_npuw(run_cases: RunCases) -> None:
    run_cases({"tokens are those of the CPU device": GENERATE, "models of any kind": NPUW})
