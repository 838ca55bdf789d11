/* The engine as a process: nv-hostengine, which stays in the foreground.
 *
 *     nv-hostengine -n [-b ADDRESS] [-p PORT]      listens on 127.0.0.1:5555 if nothing else is said
 *     nv-hostengine -n -d SOCKET                   listens on a unix socket
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dcgm_wire.h"

API int simulated_dcgm_engine(int argc, char **argv) {
    const char *address = "127.0.0.1", *path = NULL;
    int port = 5555, option;
    while ((option = getopt(argc, argv, "nb:p:d:")) != -1) {
        if (option == 'b') address = optarg;
        else if (option == 'p') port = atoi(optarg);
        else if (option == 'd') path = optarg;
        else if (option != 'n') return 2;
    }
    Status status = start_engine(0);
    if (status != OK) {
        fprintf(stderr, "simulated nv-hostengine: no driver (status %d)\n", status);
        return 1;
    }
    int listening = path ? listen_unix(path) : listen_tcp(address, port);
    if (listening < 0) {
        perror("simulated nv-hostengine: cannot listen");
        return 1;
    }
    serve_for_ever(listening);
    return 0;
}
