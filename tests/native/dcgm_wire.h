/* Connections of a client to engines, and the places where an engine listens. */
#ifndef WHORL_DCGM_WIRE_H
#define WHORL_DCGM_WIRE_H

#include "dcgm.h"

Status connect_to(const char *address, int is_unix, int timeout_ms, Id *out);
Status embed(int manual, Id *out);
Status disconnect(Id id);
Status ask(Id id, Request *request, const void *more, Buffer *answer, int64_t *now); /* now: the engine's clock */

int listen_tcp(const char *address, int port); /* a socket, or -1 */
int listen_unix(const char *path);
void serve_for_ever(int listening);

#endif
