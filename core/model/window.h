/* window.h - which layers attend to the newest tokens alone, and the cap of attention logits.
 *
 * Keys of a file, after its architecture's name:
 *   attention.sliding_window           W: a token reads those less than W before it, itself included; absent: the
 *                                      row's own (struct kvl_arch), 0: none
 *   attention.sliding_window_pattern   a period p, layer l is local where l % p < p - 1, or one bool per layer;
 *                                      absent: the row's period, and if that is 0 all layers are local
 *   attn_logit_softcapping             logits become cap * tanh(logit / cap)
 *
 * Sources: llama.cpp's converters (keys); Gemma 2 and 3, gpt-oss and Mistral in transformers (what they mean).
 */
#ifndef KVL_WINDOW_H
#define KVL_WINDOW_H

#include "weights.h"

/* Sets w->cap and the window of every layer; w's architecture, n_layers and layer must be there.  KVL_EMODEL
 * naming the key. */
int kvl_window_load(const struct kvl_gguf *file, struct kvl_weights *w, struct kvl_err *err);

#endif
