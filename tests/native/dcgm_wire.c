/* Between a client and its engine: over TCP, over a unix socket, or in the same process. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#undef NO_DATA /* of netdb.h */
#include "dcgm_wire.h"

enum { MAX_CONNECTIONS = 64, ANSWER_MS = 60000 };

typedef struct {
    Id id; /* 0: free. Ids are never given out twice, so that an old handle stays dead. */
    int socket; /* -1: in this process; -2: the connection broke */
    Client *client;
    pthread_mutex_t lock;
} Connection;

static Connection connections[MAX_CONNECTIONS];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static Id last_id = 0x7000;

int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* ---- bytes ---- */

static int write_all(int socket, const void *bytes, size_t size) {
    for (const char *at = bytes; size;) {
        ssize_t n = send(socket, at, size, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        at += n;
        size -= (size_t)n;
    }
    return 1;
}

static void wait_at_most(int socket, int ms) {
    struct timeval t = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
}

/* OK, TIMEOUT, or CONNECTION_NOT_VALID when the other side is gone. */
static Status read_all(int socket, void *bytes, size_t size) {
    for (char *at = bytes; size;) {
        ssize_t n = recv(socket, at, size, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return TIMEOUT;
        if (n <= 0) return CONNECTION_NOT_VALID;
        at += n;
        size -= (size_t)n;
    }
    return OK;
}

/* ---- the client's side ---- */

static Connection *find_connection(Id id) {
    for (int i = 0; i < MAX_CONNECTIONS; i++)
        if (id && connections[i].id == id) return &connections[i];
    return NULL;
}

static Status add_connection(int socket, Client *client, Id *out) {
    pthread_mutex_lock(&table_lock);
    int i = 0;
    while (i < MAX_CONNECTIONS && connections[i].id) i++;
    if (i < MAX_CONNECTIONS) {
        connections[i] = (Connection){.id = ++last_id, .socket = socket, .client = client};
        pthread_mutex_init(&connections[i].lock, NULL);
        *out = last_id;
    }
    pthread_mutex_unlock(&table_lock);
    return i < MAX_CONNECTIONS ? OK : MAX_LIMIT;
}

/* Reads the reply and what belongs to it, mostly in one go. */
static Status read_reply(int socket, Reply *reply, Buffer *answer) {
    char start[16384];
    size_t have = 0;
    while (have < sizeof *reply) {
        ssize_t n = recv(socket, start + have, sizeof start - have, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return TIMEOUT;
        if (n <= 0) return CONNECTION_NOT_VALID;
        have += (size_t)n;
    }
    memcpy(reply, start, sizeof *reply);
    have -= sizeof *reply;
    char *rest = extend(answer, reply->size);
    memcpy(rest, start + sizeof *reply, have);
    return read_all(socket, rest + have, reply->size - have);
}

static Status ask_remote(Connection *connection, const Request *request, const void *more, Reply *reply,
                         Buffer *answer) {
    pthread_mutex_lock(&connection->lock);
    int socket = connection->socket;
    Status status = CONNECTION_NOT_VALID;
    if (socket >= 0 && write_all(socket, request, sizeof *request) && write_all(socket, more, request->size))
        status = read_reply(socket, reply, answer);
    if (status != OK && socket >= 0) { /* what comes later would be the answer to another request */
        close(socket);
        connection->socket = -2;
    }
    pthread_mutex_unlock(&connection->lock);
    return status;
}

Status ask(Id id, Request *request, const void *more, Buffer *answer, int64_t *now) {
    Connection *connection = find_connection(id);
    Reply reply = {0};
    if (!connection) return CONNECTION_NOT_VALID;
    if (connection->socket == -1) {
        reply.now_us = now_us();
        reply.status = serve(connection->client, request, more, answer);
    } else {
        Status status = ask_remote(connection, request, more, &reply, answer);
        if (status != OK) return status;
    }
    if (now) *now = reply.now_us;
    return reply.status;
}

static int open_socket(const char *address, int is_unix) {
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    char host[256];
    if (is_unix) {
        int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        snprintf(local.sun_path, sizeof local.sun_path, "%s", address);
        if (s >= 0 && !connect(s, (struct sockaddr *)&local, sizeof local)) return s;
        close(s);
        return -1;
    }
    snprintf(host, sizeof host, "%s", address);
    char *port = strrchr(host, ':');
    if (port) *port++ = 0;
    struct addrinfo wanted = {.ai_socktype = SOCK_STREAM, .ai_family = AF_INET}, *found;
    if (getaddrinfo(host, port ? port : "5555", &wanted, &found)) return -1;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s >= 0 && connect(s, found->ai_addr, found->ai_addrlen)) {
        close(s);
        s = -1;
    }
    freeaddrinfo(found);
    if (s >= 0) setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return s;
}

/* As the real library, tries for as long as it may; then there is no connection. */
Status connect_to(const char *address, int is_unix, int timeout_ms, Id *out) {
    int64_t until = now_us() + (timeout_ms ? timeout_ms : 5000) * 1000LL;
    Request hello = {.operation = CONNECT, .text = ENGINE_VERSION};
    int s;
    while ((s = open_socket(address, is_unix)) < 0) {
        if (now_us() >= until) return CONNECTION_NOT_VALID;
        usleep(10000);
    }
    wait_at_most(s, ANSWER_MS);
    Status status = add_connection(s, NULL, out);
    Buffer nothing = {0};
    if (status == OK) status = ask(*out, &hello, NULL, &nothing, NULL);
    free(nothing.bytes);
    if (status != OK) disconnect(*out);
    return status;
}

Status embed(int manual, Id *out) {
    Status status = start_engine(manual);
    return status == OK ? add_connection(-1, new_client(), out) : status;
}

Status disconnect(Id id) {
    pthread_mutex_lock(&table_lock);
    Connection *connection = find_connection(id);
    Connection gone = connection ? *connection : (Connection){0};
    int embedded = 0;
    if (connection) connection->id = 0;
    for (int i = 0; i < MAX_CONNECTIONS; i++) embedded += connections[i].id && connections[i].socket == -1;
    pthread_mutex_unlock(&table_lock);
    if (!connection) return CONNECTION_NOT_VALID;
    if (gone.socket >= 0) { /* when the engine has closed its side, what this client made is gone */
        char rest;
        shutdown(gone.socket, SHUT_WR);
        wait_at_most(gone.socket, 200);
        while (read_all(gone.socket, &rest, 1) == OK);
        close(gone.socket);
    }
    if (gone.client) {
        end_client(gone.client);
        if (!embedded) stop_engine();
    }
    return OK;
}

/* ---- the engine's side ---- */

static void *serve_one(void *argument) {
    int socket = (int)(intptr_t)argument;
    Client *client = new_client();
    Request request;
    while (read_all(socket, &request, sizeof request) == OK) {
        Buffer more = {0}, answer = {0};
        if (request.size && read_all(socket, extend(&more, request.size), request.size) != OK) break;
        Reply reply = {.now_us = now_us()};
        put(&answer, &reply, sizeof reply);
        reply.status = serve(client, &request, more.bytes, &answer);
        reply.size = (uint32_t)(answer.size - sizeof reply);
        memcpy(answer.bytes, &reply, sizeof reply);
        int sent = write_all(socket, answer.bytes, answer.size);
        free(more.bytes);
        free(answer.bytes);
        if (!sent) break;
    }
    end_client(client);
    close(socket);
    return NULL;
}

void serve_for_ever(int listening) {
    for (;;) {
        int socket = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;
        if (socket < 0) continue;
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        if (pthread_create(&thread, NULL, serve_one, (void *)(intptr_t)socket)) close(socket);
        else pthread_detach(thread);
    }
}

int listen_tcp(const char *address, int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (!inet_aton(address, &at.sin_addr) || bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 16)) return -1;
    return s;
}

int listen_unix(const char *path) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    unlink(path);
    return bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 16) ? -1 : s;
}
