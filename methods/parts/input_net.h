/* input_net.h - networks of a file that score a token by what enters a layer (KVzap).
 *
 * Thread-safe: as kvl/policy.h. */
#ifndef KVL_INPUT_NET_H
#define KVL_INPUT_NET_H

#include "kvl/policy.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Asks for the observer KVL_OBS_INPUTS by the networks of a safetensors file or folder: for every layer L of the model,
 * those of a window too, a linear map
 *     layers.L.weight [n_kv_heads][n_embd], layers.L.bias [n_kv_heads]
 * or two with a GELU (by erf) between them
 *     layers.L.0.weight [any][n_embd], layers.L.0.bias, layers.L.2.weight [n_kv_heads][any], layers.L.2.bias
 * sum [KVL_TABLES_SUM]: "", or what the checksum must be; written.  *key: for kvl_obs_columns and kvl_step_inputs.  path must live as long as the plan.
 * KVL_EINVAL: a tensor is missing, of another shape, or not of these. */
int kvl_plan_input_net(struct kvl_plan *plan, const char *path, char *sum, int32_t *key);

#ifdef __cplusplus
}
#endif

#endif
