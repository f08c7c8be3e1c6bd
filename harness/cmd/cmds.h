/* cmds.h - the sub-commands; main.c has the table.
 *
 * argv[0] is the command's name as the user should see it ("kvlab report").  A command parses its
 * own arguments, prints results to standard output and returns KVL_OK or a KVL_E* with a message in
 * `err`, which main prints and turns into the exit code (kvl_status_exit).  A positive number, with a message,
 * is the exit code itself.
 */
#ifndef KVL_CMDS_H
#define KVL_CMDS_H

#include "kvl/base.h"

int cmd_analyze(int argc, char **argv, struct kvl_err *err);
int cmd_bench(int argc, char **argv, struct kvl_err *err);
int cmd_compare(int argc, char **argv, struct kvl_err *err);
int cmd_data(int argc, char **argv, struct kvl_err *err);
int cmd_describe(int argc, char **argv, struct kvl_err *err);
int cmd_doctor(int argc, char **argv, struct kvl_err *err);
int cmd_models(int argc, char **argv, struct kvl_err *err);
int cmd_export(int argc, char **argv, struct kvl_err *err);
int cmd_generate(int argc, char **argv, struct kvl_err *err);
int cmd_inspect(int argc, char **argv, struct kvl_err *err);
int cmd_list(int argc, char **argv, struct kvl_err *err);
int cmd_log(int argc, char **argv, struct kvl_err *err);
int cmd_logits(int argc, char **argv, struct kvl_err *err);
int cmd_plot(int argc, char **argv, struct kvl_err *err);
int cmd_report(int argc, char **argv, struct kvl_err *err);
int cmd_reproduce(int argc, char **argv, struct kvl_err *err);
int cmd_run(int argc, char **argv, struct kvl_err *err);
int cmd_show(int argc, char **argv, struct kvl_err *err);
int cmd_simulate(int argc, char **argv, struct kvl_err *err);
int cmd_snapshots(int argc, char **argv, struct kvl_err *err);
int cmd_status(int argc, char **argv, struct kvl_err *err);
int cmd_sweep(int argc, char **argv, struct kvl_err *err);
int cmd_tables(int argc, char **argv, struct kvl_err *err);
int cmd_trace(int argc, char **argv, struct kvl_err *err);
int cmd_tokenize(int argc, char **argv, struct kvl_err *err);

#endif
