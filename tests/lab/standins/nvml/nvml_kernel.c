// SPDX-License-Identifier: Apache-2.0
/* The control socket of the simulated kernel; see nvml.c. */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "nvml_kernel.h"

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static int uses, sock = -1;
static pid_t owner;
static char dialled[sizeof(((struct sockaddr_un *)0)->sun_path)];

static int dial(void)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = getenv("FAKEHOST_CONTROL");

    if (!path || strlen(path) >= sizeof(to.sun_path))
        return -1;
    if (sock >= 0 && owner == getpid() && !strcmp(path, dialled))
        return 0;
    if (sock >= 0)
        close(sock);
    strcpy(to.sun_path, path);
    strcpy(dialled, path);
    sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    owner = getpid();
    if (sock >= 0 && connect(sock, (struct sockaddr *)&to, sizeof(to)) == 0)
        return 0;
    if (sock >= 0)
        close(sock);
    sock = -1;
    return -1;
}

static int exchange(const char *line, char *text, size_t size)
{
    size_t sent = 0, length = strlen(line), got = 0;

    while (sent < length) {
        ssize_t n = send(sock, line + sent, length - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        sent += n;
    }
    while (got + 1 < size) {
        ssize_t n = recv(sock, text + got, size - 1 - got, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        got += n;
        text[got] = 0;
        if (text[got - 1] == '\n')
            return 0;
    }
    return -1;
}

/* Cut {"result": "CODE a;b;c"} into fields; returns the code. */
static nvmlReturn_t cut(struct answer *a)
{
    char *start = strstr(a->text, "\"result\": \""), *end, *word;
    long code;

    a->count = 0;
    if (!start)
        return UNKNOWN;
    start += strlen("\"result\": \"");
    end = strrchr(start, '"');
    if (!end)
        return UNKNOWN;
    *end = 0;
    code = strtol(start, &word, 10);
    if (*word == ' ')
        word++;
    while (*word && a->count < MAX_FIELDS) {
        char *stop = strchr(word, ';');
        a->field[a->count++] = word;
        if (!stop)
            break;
        *stop = 0;
        word = stop + 1;
    }
    return code;
}

nvmlReturn_t ask(struct answer *a, const char *call, int count, ...)
{
    char line[512], *at = line;
    nvmlReturn_t code;
    va_list numbers;
    int tries;

    at += sprintf(at, "{\"command\": \"nvml\", \"arguments\": {\"call\": \"%s\""
                      ", \"arguments\": [", call);
    va_start(numbers, count);
    for (int i = 0; i < count; i++)
        at += sprintf(at, "%s%lld", i ? ", " : "", va_arg(numbers, long long));
    va_end(numbers);
    strcpy(at, "]}}\n");
    pthread_mutex_lock(&guard);
    code = uses ? UNKNOWN : UNINITIALIZED;
    for (tries = 0; code == UNKNOWN && tries < 2; tries++) {
        if (dial())
            break;
        if (exchange(line, a->text, sizeof(a->text)) == 0) {
            code = cut(a);
            break;
        }
        close(sock);
        sock = -1;
    }
    pthread_mutex_unlock(&guard);
    return code;
}

unsigned long long number(const struct answer *a, int field)
{
    return field < a->count ? strtoull(a->field[field], NULL, 10) : 0;
}

void copy(char *to, unsigned size, const struct answer *a, int field)
{
    snprintf(to, size, "%s", field < a->count ? a->field[field] : "");
}

void locate(struct pci_info *info, const char *address)
{
    unsigned function = 0;

    memset(info, 0, sizeof(*info));
    sscanf(address, "%x:%x:%x.%x", &info->domain, &info->bus, &info->device,
           &function);
    snprintf(info->legacy, sizeof(info->legacy), "%04X:%02X:%02X.%X",
             info->domain & 0xffff, info->bus & 0xff, info->device & 0x1f,
             function & 7);
    snprintf(info->address, sizeof(info->address), "%08X:%02X:%02X.%X",
             info->domain, info->bus, info->device, function);
}

nvmlReturn_t kernel_open(void)
{
    nvmlReturn_t code = SUCCESS;

    pthread_mutex_lock(&guard);
    if (dial())
        code = DRIVER_NOT_LOADED;
    else
        uses++;
    pthread_mutex_unlock(&guard);
    return code;
}

nvmlReturn_t kernel_close(void)
{
    nvmlReturn_t code = SUCCESS;

    pthread_mutex_lock(&guard);
    if (!uses)
        code = UNINITIALIZED;
    else
        uses--;  /* the connection waits for the next user */
    pthread_mutex_unlock(&guard);
    return code;
}
