/* hf.h - a folder of Hugging Face's form (config.json, *.safetensors, a tokenizer) as a GGUF file.
 *
 * Its keys and tensors have the names of GGUF, so that one loader reads both.  What differs: elements of q and k
 * turn together half a head apart for all architectures but GLM's (the writers of GGUF files move rows).
 *
 * Errors: KVL_EMODEL naming the file and the key or tensor; KVL_EIO; KVL_ENOMEM.
 * Thread-safe: as GGUF files are.
 */
#ifndef KVL_HF_H
#define KVL_HF_H

#include "kvl/gguf.h"

/* Whether `path` is a folder, or a config.json. */
bool kvl_hf_is(const char *path);
/* map: never a copy of the weights' files. */
int kvl_hf_open(const char *path, bool map, struct kvl_gguf **out, struct kvl_err *err);

#endif
