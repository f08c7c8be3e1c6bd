/* kvlab: the table of sub-commands, signals, error line and exit code. */
#include "build.h"
#include "cmds.h"
#include "omp_env.h"
#include "show.h"
#include "stop.h"

#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct main_cmd {
    const char *name;
    int (*run)(int argc, char **argv, struct kvl_err *err);
    const char *help;
};

static const struct main_cmd main_cmds[] = {
    { "list", cmd_list, "policies and tasks that there are" },
    { "describe", cmd_describe, "a policy or task: what it is, its options" },
    { "run", cmd_run, "a small sweep from flags: tasks, policies, budgets" },
    { "sweep", cmd_sweep, "a YAML file of axes; start it again to resume" },
    { "status", cmd_status, "what of a log is done" },
    { "report", cmd_report, "the table of a log" },
    { "show", cmd_show, "one answer of a log: its prompt, what was kept, its score" },
    { "compare", cmd_compare, "two logs or two policies: what got better or worse" },
    { "export", cmd_export, "tables of a log as TSV, CSV or JSON" },
    { "data", cmd_data, "benchmarks' files: what is in them; scores of predictions" },
    { "plot", cmd_plot, "a figure from logs" },
    { "reproduce", cmd_reproduce, "tables and figures of papers, theirs beside ours" },
    { "inspect", cmd_inspect, "what a model or a log is, and whether it runs" },
    { "models", cmd_models, "which public models run, and what memory they take" },
    { "snapshots", cmd_snapshots,
      "a folder of prefilled contexts: what it holds, whether it is whole" },
    { "log", cmd_log, "check, repair or merge logs" },
    { "tokenize", cmd_tokenize, "text to token ids, and back" },
    { "generate", cmd_generate, "continue a prompt, under a policy if wanted" },
    { "analyze", cmd_analyze, "full attention: its mass, alike layers, drifting tokens" },
    { "trace", cmd_trace, "what a policy reads and keeps, step by step" },
    { "tables", cmd_tables, "measures the table of heads that a method takes" },
    { "bench", cmd_bench, "how near to what this machine can do" },
    { "simulate", cmd_simulate, "predicts time, memory and bytes on other devices" },
    { "doctor", cmd_doctor, "what this machine has: processor, memory, GPU" },
    { "logits", cmd_logits, "logits of a list of tokens, as .npy" },
};

enum { MAIN_N_CMDS = sizeof main_cmds / sizeof main_cmds[0] };

static void main_help(void)
{
    puts("kvlab compares methods that evict, select or offload the KV cache of language models.\n"
         "\n"
         "usage: kvlab COMMAND [OPTIONS]\n");
    for (size_t i = 0; i < MAIN_N_CMDS; i++)
        printf("  %-10s %s\n", main_cmds[i].name, main_cmds[i].help);
    puts(
        "\n"
        "kvlab COMMAND --help says more; kvlab --version says what this is.\n"
        "exit codes: 0 done, 1 worse (compare), 2 bad argument or configuration, 3 bad model,\n"
        "  4 memory or disk, 5 damaged or locked log, 6 a policy or task broke its contract, 7 "
        "device,\n"
        "  70 a bug here, 75 stopped by SIGTERM, SIGUSR1 or SIGUSR2 (or status: not all is done):\n"
        "  run it again, 128 + n stopped by signal n");
}

static int main_unknown(const char *name, struct kvl_err *err)
{
    const char *names[MAIN_N_CMDS];
    for (size_t i = 0; i < MAIN_N_CMDS; i++) names[i] = main_cmds[i].name;
    const char *near = kvl_nearest(name, names, MAIN_N_CMDS);
    if (near)
        return kvl_fail(err, KVL_EINVAL, "%s: no such command, did you mean \"%s\"?", name, near);
    return kvl_fail(err, KVL_EINVAL, "%s: no such command, see kvlab --help", name);
}

static int main_cmd(int argc, char **argv, struct kvl_err *err)
{
    if (argc < 2) return kvl_fail(err, KVL_EINVAL, "no command, see kvlab --help");
    static char help[] = "--help";
    char *said[] = { argv[0], argv[argc > 2 ? 2 : 1], help, NULL };
    if (argc > 2 && strcmp(argv[1], "help") == 0) { /* kvlab help X: kvlab X --help */
        argc = 3;
        argv = said;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        main_help();
        return KVL_OK;
    }
    if (strcmp(name, "--version") == 0) {
        printf("kvlab %s (%s, %s, %s)\n", kvl_build.version, kvl_build.git, kvl_build.type,
               kvl_build.compiler);
        return KVL_OK;
    }
    for (size_t i = 0; i < MAIN_N_CMDS; i++) {
        if (strcmp(name, main_cmds[i].name) != 0) continue;
        char title[64];
        snprintf(title, sizeof title, "kvlab %s", name);
        argv[1] = title;
        return main_cmds[i].run(argc - 1, argv + 1, err);
    }
    return main_unknown(name, err);
}

/* Nobody reads any more, as with `kvlab report LOG | head`: no failure of ours, and nothing to say. */
static bool main_reader_gone(void)
{
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR);
}

/* Output that did not arrive is an error, not a success with an empty file. */
static int main_flush(int rc, struct kvl_err *err)
{
    bool failed = fflush(stdout) != 0 || ferror(stdout);
    if (failed && rc == KVL_OK && main_reader_gone()) return KVL_ESTOP;
    if (failed && rc == KVL_OK)
        return kvl_fail(err, KVL_EIO,
                        "standard output: cannot write, want a disk with space or an "
                        "open pipe");
    return rc;
}

int main(int argc, char **argv)
{
    struct kvl_err err = { 0 };
    kvl_omp_env(argv);
    kvl_show_streams();
    setlocale(LC_ALL, "C");
    kvl_stop_ignore();
    int rc = main_flush(main_cmd(argc, argv, &err), &err);
    bool gone = rc == KVL_ESTOP && !*kvl_stop_flag() && !err.msg[0];
    if (gone) return 128 + SIGPIPE;
    if (rc != KVL_OK) fprintf(stderr, "kvlab: %s\n", err.msg[0] ? err.msg : kvl_status_name(rc));
    if (rc == KVL_ESTOP && *kvl_stop_flag()) return kvl_stop_exit();
    return rc > 0 ? rc : kvl_status_exit(rc);
}
