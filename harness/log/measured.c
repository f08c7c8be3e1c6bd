/* Names and constants of what a run measured. */
#include "measured.h"

const double kvl_analysis_mass[KVL_ANALYSIS_P] = { 0.90, 0.95, 0.99 };

const char *kvl_analysis_reduce_name(enum kvl_analysis_reduce r)
{
    return r == KVL_ANALYSIS_MAX ? "max" : "mean";
}
