/* calibrate.h - rates of a sweep that no log has answers of: it is run in little.
 *
 * One context of every task at one short length, answered under all policies and budgets; then, where the sweep has
 * longer ones, one of the first task at a second length, so that one knows how times grow.
 * What it records is thrown away.
 *
 * Thread-safe: no.
 */
#ifndef KVL_CALIBRATE_H
#define KVL_CALIBRATE_H

#include "rates.h"

/* Adds to `rates`; `like` is the runner that is to run, with its work, jobs and info.  KVL_ESTOP; errors of the
 * plan and the engine.  A policy that fails has no rate. */
int kvl_calibrate(const struct kvl_runner *like, struct kvl_rates *rates, struct kvl_err *err);

#endif
