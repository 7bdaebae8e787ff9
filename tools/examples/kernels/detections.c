/* A decoder of detections, as of YOLOv8: [1, 4 + classes, candidates] to boxes, scores and classes of those that
 * score enough and overlap no better one of their class. How many that are is known afterwards only: dynamic outputs.
 */
#include "softnpu_kernel.h"

SOFTNPU_KERNEL({
    "abi": 1,
    "domain": "softnpu.examples",
    "name": "Detections",
    "inputs": ["candidates"],
    "outputs": ["boxes", "scores", "classes"],
    "dynamic": ["boxes", "scores", "classes"],
    "implementations": [{"inputs": ["f32"], "outputs": ["f32", "f32", "i32"], "run": "detections"}],
    "attributes": [
        {"name": "score", "kind": "number", "default": 0.25},
        {"name": "overlap", "kind": "number", "default": 0.7},
        {"name": "most", "kind": "integer", "default": 300}
    ]
});

enum { SCORE, OVERLAP, MOST }; /* of the attributes */
enum { BOXES, SCORES, CLASSES };

typedef struct {
    float score;
    int32_t index, class;
} candidate;

SOFTNPU_EXPORT(softnpu_shapes) int32_t softnpu_shapes(softnpu_call *call) {
    const softnpu_tensor *input = &call->inputs[0];
    int64_t most = softnpu_integer(call, MOST);
    if (input->rank != 3 || input->shape[0] != 1 || input->shape[1] < 5)
        return softnpu_fail(call, "input candidates: another shape; expected [1, 4 + classes, candidates]");
    if (most < 0) return softnpu_fail(call, "attribute most: negative");
    int64_t bound = input->shape[2] < most ? input->shape[2] : most;
    softnpu_set_shape(&call->outputs[BOXES], 2, (int64_t[]){bound, 4});
    softnpu_set_shape(&call->outputs[SCORES], 1, &bound);
    softnpu_set_shape(&call->outputs[CLASSES], 1, &bound);
    call->scratch_size = (uint32_t)(input->shape[2] * (int64_t)sizeof(candidate));
    return 0;
}

/* Whether `a` comes first: the better score, then the lower index. */
static int before(candidate a, candidate b) {
    return a.score > b.score || (a.score == b.score && a.index < b.index);
}

static void sift(candidate *heap, int64_t at, int64_t count) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(heap[child], heap[child + 1])) child++;
        if (!before(heap[at], heap[child])) return;
        candidate swapped = heap[at];
        heap[at] = heap[child];
        heap[child] = swapped;
    }
}

/* Sort by the score, the best first: the heap's top, the worst, goes to the end. */
static void sort(candidate *all, int64_t count) {
    for (int64_t i = count / 2; i-- > 0;) sift(all, i, count);
    for (int64_t last = count; last-- > 1;) {
        candidate swapped = all[0];
        all[0] = all[last];
        all[last] = swapped;
        sift(all, 0, last);
    }
}

static float overlap(const float *a, const float *b) {
    float width = __builtin_fminf(a[2], b[2]) - __builtin_fmaxf(a[0], b[0]);
    float height = __builtin_fminf(a[3], b[3]) - __builtin_fmaxf(a[1], b[1]);
    if (width <= 0 || height <= 0) return 0;
    float common = width * height;
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common);
}

SOFTNPU_EXPORT(detections) int32_t detections(softnpu_call *call) {
    const softnpu_tensor *input = &call->inputs[0];
    const float *x = input->data;
    int64_t classes = input->shape[1] - 4, total = input->shape[2], found = 0, kept = 0;
    float least = (float)softnpu_number(call, SCORE), most_overlap = (float)softnpu_number(call, OVERLAP);
    candidate *all = call->scratch;
    for (int64_t i = 0; i < total; i++) {
        candidate best = {x[4 * total + i], (int32_t)i, 0};
        for (int64_t c = 1; c < classes; c++)
            if (x[(4 + c) * total + i] > best.score) best.score = x[(4 + c) * total + i], best.class = (int32_t)c;
        if (best.score >= least) all[found++] = best;
    }
    sort(all, found);
    float *boxes = call->outputs[BOXES].data, *scores = call->outputs[SCORES].data;
    int32_t *labels = call->outputs[CLASSES].data;
    int64_t bound = call->outputs[SCORES].shape[0];
    for (int64_t i = 0; i < found && kept < bound; i++) {
        const float *centre = x + all[i].index;
        float width = centre[2 * total] / 2, height = centre[3 * total] / 2, *box = boxes + 4 * kept;
        box[0] = centre[0] - width, box[1] = centre[total] - height;
        box[2] = centre[0] + width, box[3] = centre[total] + height;
        int64_t other = 0;
        while (other < kept && (labels[other] != all[i].class || overlap(boxes + 4 * other, box) <= most_overlap))
            other++;
        if (other < kept) continue;
        scores[kept] = all[i].score;
        labels[kept++] = all[i].class;
    }
    call->outputs[BOXES].shape[0] = call->outputs[SCORES].shape[0] = call->outputs[CLASSES].shape[0] = kept;
    return 0;
}
