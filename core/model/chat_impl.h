/* chat_impl.h - what the files of chat templates share. */
#ifndef KVL_CHAT_IMPL_H
#define KVL_CHAT_IMPL_H

#include "kvl/chat.h"

/* Jinja of a template that comes with kvlab; NULL: there is none of that name. */
const char *kvl_chat_source(const char *name);

#endif
