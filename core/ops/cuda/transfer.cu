/* Copies, and the order of streams.
 *
 * Ordinary memory reaches the GPU through a ring of pinned memory: a copy straight from it would wait for
 * everything that the stream was given before.  The limit is the host's memcpy, which overlaps with the
 * transfer of the segment before it. */
#include "runtime.cuh"

#include <string.h>

enum { RING_SEGMENT_BYTES = 4 << 20 };

int kvl_cuda_ring_open(struct kvl_cuda_ring *r)
{
    void *base;
    if (r->base) return KVL_OK;
    for (int i = 0; i < KVL_RING_SEGMENTS; i++)
        if (!r->left[i])
            KVL_TRY(kvl_cuda_check(cudaEventCreateWithFlags(&r->left[i], cudaEventDisableTiming),
                                   "making an event"));
    KVL_TRY(
        kvl_cuda_alloc(KVL_PLACE_PINNED, (size_t)RING_SEGMENT_BYTES * KVL_RING_SEGMENTS, &base));
    r->base = static_cast<uint8_t *>(base);
    return KVL_OK;
}

/* The next segment, once what left from it has arrived. */
static int ring_turn(struct kvl_cuda_ring *r, cudaStream_t stream)
{
    KVL_TRY(kvl_cuda_check(cudaEventRecord(r->left[r->segment], stream), "recording an event"));
    r->waits[r->segment] = true;
    r->segment = (r->segment + 1) % KVL_RING_SEGMENTS;
    r->used = 0;
    if (!r->waits[r->segment]) return KVL_OK;
    r->waits[r->segment] = false;
    return kvl_cuda_check(cudaEventSynchronize(r->left[r->segment]), "waiting for an upload");
}

static int ring_send(struct kvl_cuda_ring *r, uint8_t *to, const uint8_t *host, size_t bytes,
                     cudaStream_t stream)
{
    uint8_t *at = r->base + (size_t)r->segment * RING_SEGMENT_BYTES + r->used;
    memcpy(at, host, bytes);
    r->used += (bytes + 15) / 16 * 16;
    return kvl_cuda_check(cudaMemcpyAsync(to, at, bytes, cudaMemcpyHostToDevice, stream),
                          "copying to the device");
}

int kvl_cuda_ring_upload(void *to, const void *host, size_t bytes, enum kvl_stream stream)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    struct kvl_cuda_ring *r = &rt->ring[stream];
    if (bytes == 0) return KVL_OK;
    KVL_TRY(kvl_cuda_ring_open(r));
    uint8_t *dst = static_cast<uint8_t *>(to);
    const uint8_t *src = static_cast<const uint8_t *>(host);
    rt->busy[stream] = true;
    for (size_t n, left = bytes; left > 0; left -= n, dst += n, src += n) {
        if (r->used == RING_SEGMENT_BYTES) KVL_TRY(ring_turn(r, rt->stream[stream]));
        n = KVL_MIN(left, RING_SEGMENT_BYTES - r->used);
        KVL_TRY(ring_send(r, dst, src, n, rt->stream[stream]));
    }
    rt->traffic.h2d_bytes += (int64_t)bytes;
    rt->traffic.h2d_calls++;
    return KVL_OK;
}

int kvl_cuda_upload_to(void *to, const void *host, size_t bytes, enum kvl_stream stream)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    const void *twin = NULL;
    if (bytes == 0) return KVL_OK;
    if (stream == KVL_STREAM_MAIN) KVL_TRY(kvl_cuda_step_put(host, bytes, &twin));
    if (!twin) return kvl_cuda_ring_upload(to, host, bytes, stream);
    rt->traffic.d2d_bytes += (int64_t)bytes;
    rt->traffic.d2d_calls++;
    return kvl_cuda_check(cudaMemcpyAsync(to, twin, bytes, cudaMemcpyDefault, kvl_cuda_main()),
                          "copying");
}

int kvl_cuda_download(void *host, const void *from, size_t bytes, enum kvl_stream stream)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    if (bytes == 0) return KVL_OK;
    if (stream == KVL_STREAM_MAIN) KVL_TRY(kvl_cuda_step_start());
    rt->busy[stream] = true;
    rt->traffic.d2h_bytes += (int64_t)bytes;
    rt->traffic.d2h_calls++;
    return kvl_cuda_check(cudaMemcpyAsync(host, from, bytes, cudaMemcpyDefault, rt->stream[stream]),
                          "copying from the device");
}

int kvl_cuda_wait(enum kvl_stream stream)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    if (stream == KVL_STREAM_MAIN) KVL_TRY(kvl_cuda_step_start());
    rt->traffic.n_syncs++;
    KVL_TRY(kvl_cuda_check(cudaStreamSynchronize(rt->stream[stream]), "waiting"));
    rt->busy[stream] = false;
    return KVL_OK;
}

/* Between places that the device reaches. */
static int transfer_between(void *to, enum kvl_place to_place, const void *from,
                            enum kvl_place from_place, size_t bytes, enum kvl_stream stream)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    struct kvl_device_traffic *t = &rt->traffic;
    bool up = from_place == KVL_PLACE_PINNED && to_place != KVL_PLACE_PINNED;
    bool down = to_place == KVL_PLACE_PINNED && from_place != KVL_PLACE_PINNED;
    int64_t n = (int64_t)bytes;
    t->h2d_bytes += up ? n : 0;
    t->h2d_calls += up;
    t->d2h_bytes += down ? n : 0;
    t->d2h_calls += down;
    t->d2d_bytes += up || down ? 0 : n;
    t->d2d_calls += !up && !down;
    rt->busy[stream] = true;
    return kvl_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, rt->stream[stream]),
                          "copying");
}

/* Pinned memory is the host's own, once the device is done with it. */
static int transfer_on_host(void *to, const void *from, size_t bytes, enum kvl_stream stream)
{
    KVL_TRY(kvl_cuda_wait(stream));
    memcpy(to, from, bytes);
    return KVL_OK;
}

int kvl_cuda_copy(void *to, const void *from, size_t bytes, enum kvl_stream stream)
{
    enum kvl_place to_place, from_place;
    KVL_TRY(kvl_cuda_ready());
    if (bytes == 0 || to == from) return KVL_OK;
    void *to_there = kvl_cuda_find(to, bytes, &to_place);
    const void *from_there = kvl_cuda_find(from, bytes, &from_place);
    if (kvl_cuda_is_twin(from_place)) {
        if (to_place == KVL_PLACE_HOST && kvl_cuda_twin_is_host(from, bytes)) {
            memcpy(to, from, bytes);
            return KVL_OK;
        }
        KVL_TRY(kvl_cuda_twin_in(from, bytes));
        from = from_there;
    }
    if (kvl_cuda_is_twin(to_place)) {
        KVL_TRY(kvl_cuda_twin_out(to, bytes, false));
        to = to_there;
    }
    if (to_place == KVL_PLACE_HOST && from_place == KVL_PLACE_HOST) {
        memmove(to, from, bytes);
        return KVL_OK;
    }
    if ((to_place == KVL_PLACE_HOST && from_place == KVL_PLACE_PINNED) ||
        (to_place == KVL_PLACE_PINNED && from_place == KVL_PLACE_HOST))
        return transfer_on_host(to, from, bytes, stream);
    if (from_place == KVL_PLACE_HOST) return kvl_cuda_upload_to(to, from, bytes, stream);
    if (to_place != KVL_PLACE_HOST)
        return transfer_between(to, to_place, from, from_place, bytes, stream);
    KVL_TRY(kvl_cuda_download(to, from, bytes, stream));
    return kvl_cuda_wait(stream);
}

int kvl_cuda_fill(void *p, uint8_t byte, size_t bytes, enum kvl_stream stream)
{
    enum kvl_place place;
    KVL_TRY(kvl_cuda_ready());
    if (bytes == 0) return KVL_OK;
    void *there = kvl_cuda_find(p, bytes, &place);
    if (place == KVL_PLACE_HOST) {
        memset(p, byte, bytes);
        return KVL_OK;
    }
    if (kvl_cuda_is_twin(place)) {
        KVL_TRY(kvl_cuda_twin_out(p, bytes, false));
        p = there;
    }
    kvl_cuda_rt.busy[stream] = true;
    return kvl_cuda_check(cudaMemsetAsync(p, byte, bytes, kvl_cuda_rt.stream[stream]), "filling");
}

int kvl_cuda_order(enum kvl_stream earlier, enum kvl_stream later)
{
    struct kvl_cuda_runtime *rt = &kvl_cuda_rt;
    KVL_TRY(kvl_cuda_ready());
    if (!rt->busy[earlier]) return KVL_OK;
    KVL_TRY(kvl_cuda_step_start());
    rt->busy[later] = true;
    KVL_TRY(kvl_cuda_check(cudaEventRecord(rt->mark[earlier], rt->stream[earlier]),
                           "recording an event"));
    return kvl_cuda_check(cudaStreamWaitEvent(rt->stream[later], rt->mark[earlier], 0),
                          "ordering streams");
}
