#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <check.h>

#include "bench/models/peer.h"

static struct {
    pid_t pid;
    FILE *to, *from; /* NULL: it is not there */
} peer;

static void peer_run(const int to[2], const int from[2])
{
    char command[1600], path[400];
    (void)snprintf(command, sizeof(command),
                   "%s -c 'import importlib.util as u; exit(u.find_spec(\"torch\") is None)' && "
                   "exec %s '%s' --device cuda --precision %s",
                   options.python, options.python, models_script_path(path), options.precision);
    if (dup2(to[0], STDIN_FILENO) >= 0 && dup2(from[1], STDOUT_FILENO) >= 0) {
        (void)execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    }
    _exit(127);
}

void peer_stop(void)
{
    if (peer.to != NULL) {
        (void)fclose(peer.to);
        (void)fclose(peer.from);
        (void)waitpid(peer.pid, NULL, 0);
        peer.to = peer.from = NULL;
    }
}

void peer_start(void)
{
    char text[200];
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0 || (peer.pid = fork()) < 0) {
        perror("torch_models.py");
        exit(1);
    }
    if (peer.pid == 0) {
        peer_run(to, from);
    }
    (void)close(to[0]);
    (void)close(from[1]);
    peer.to = fdopen(to[1], "w");
    peer.from = fdopen(from[0], "r");
    ck_assert(peer.to != NULL && peer.from != NULL);
    (void)signal(SIGPIPE, SIG_IGN); /* its end is seen by reading */
    if (fgets(text, sizeof(text), peer.from) == NULL) {
        peer_stop();
        printf("no PyTorch with a GPU\n");
        return;
    }
    printf("%s", text);
}

struct peer_steps peer_ask(const struct bench_model *model, uint32_t batch, double seconds)
{
    struct peer_steps steps = {0, 0, true};
    char text[500] = "";
    int deterministic = 1;
    if (peer.to == NULL) {
        return steps;
    }
    (void)fprintf(peer.to, "%s %u %g\n", model->name, batch, seconds);
    if (fflush(peer.to) != 0 || fgets(text, sizeof(text), peer.from) == NULL) {
        (void)fprintf(stderr, "torch_models.py ended\n");
        peer_stop();
        return steps;
    }
    if (sscanf(text, "%lf %lf %d", &steps.copied, &steps.resident, &deterministic) != 3) {
        (void)fprintf(stderr, "torch_models.py: %s: %s", model->name, text);
        return (struct peer_steps){0, 0, true};
    }
    steps.deterministic = deterministic != 0;
    return steps;
}
