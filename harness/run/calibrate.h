/* calibrate.h - rates of a sweep that no log has answers of: it is run in little.
 *
 * One context of every task at one short length, answered under all policies and up to three budgets, with as many
 * questions as decode together; then, where the sweep has longer ones, one of the first task at a second length, so that one knows how times grow.
 * What it records is thrown away.  It ends after KVL_CALIBRATE_S: what it did not come to has
 * no rates of its own.
 *
 * Thread-safe: no.
 */
#ifndef KVL_CALIBRATE_H
#define KVL_CALIBRATE_H

#include "rates.h"

enum { KVL_CALIBRATE_S = 120 };

/* Adds to `rates`; `like` is the runner that is to run, with its work, jobs and info.  KVL_ESTOP; errors of the
 * plan, the engine and of the last task that cannot make its context: what others took is added
 * nevertheless.  A policy that fails has no rate.  `whole`: every task was run. */
int kvl_calibrate(const struct kvl_runner *like, struct kvl_rates *rates, bool *whole,
                  struct kvl_err *err);

#endif
