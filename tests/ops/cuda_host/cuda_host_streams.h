/* cuda_host_streams.h - streams, events and graphs from inside. */
#ifndef KVL_CUDA_HOST_STREAMS_H
#define KVL_CUDA_HOST_STREAMS_H

#include "cuda_host_impl.h"

#include <deque>

struct CUstream_st {
    std::deque<kvl_emu_job> queue;
    kvl_emu_flag last; /* of what was given last; null: nothing ever */
    bool nonblocking = false;
    kvl_emu_captured capture; /* null: none */
    std::vector<int> tail;    /* nodes that the next one comes after */
};
struct CUevent_st {
    kvl_emu_flag done; /* null: never recorded */
    std::shared_ptr<double> at;
    bool timed;
    kvl_emu_captured capture; /* recorded while capturing */
    std::vector<int> tail;
};
struct CUgraph_st {
    kvl_emu_nodes nodes;
};
struct CUgraphExec_st {
    kvl_emu_nodes nodes;
    kvl_emu_flag last;
};

/* The default stream first. */
extern std::vector<struct CUstream_st *> &kvl_emu_streams;

#endif
