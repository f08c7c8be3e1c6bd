/* scorers.h - what an answer is worth, by the rules of published benchmarks.
 *
 * Every scorer has two readings: `official` gives what the benchmark's own script gives, with what is odd
 * about it, and `strict` mends that: answers are whole words, errors of the script are no zeros.  Where the script
 * ends with an error, official is 0.
 * scorers.c says at each scorer where the two differ.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_SCORERS_H
#define KVL_SCORERS_H

#include "kvl/base.h"

enum kvl_scorer {
    KVL_SCORE_EXACT = 0,      /* equal but for space around it */
    KVL_SCORE_SUBSTRING,      /* Liu et al.: any answer, upper and lower case alike */
    KVL_SCORE_ALL_SUBSTRINGS, /* RULER string_match_all: share of the answers */
    KVL_SCORE_ANY_SUBSTRING,  /* RULER string_match_part */
    KVL_SCORE_SUBSTRING_EM,   /* HELMET: any answer, both as SQuAD compares them */
    KVL_SCORE_F1,             /* SQuAD words */
    KVL_SCORE_F1_ZH,          /* Chinese characters */
    KVL_SCORE_ROUGE_L,        /* the package rouge */
    KVL_SCORE_ROUGE_L_ZH,     /* the same, a character is a word */
    KVL_SCORE_ROUGE_LSUM,     /* the package rouge_score */
    KVL_SCORE_CLASSIFICATION, /* LongBench */
    KVL_SCORE_RETRIEVAL,
    KVL_SCORE_COUNT,
    KVL_SCORE_CODE_SIM,
    KVL_SCORE_CHOICE,       /* InfiniteBench and SCBench: A, B, C or D */
    KVL_SCORE_CHOICE_TAG,   /* LongBench v2: "The correct answer is (A)" */
    KVL_SCORE_FIRST_INT,    /* InfiniteBench: passkey, number_string */
    KVL_SCORE_KV_WORDS,     /* InfiniteBench: kv_retrieval */
    KVL_SCORE_KV_IN,        /* SCBench: the same, looser */
    KVL_SCORE_CODE_RUN,     /* InfiniteBench */
    KVL_SCORE_CODE_DEBUG,   /* InfiniteBench: answers are the function and its letter */
    KVL_SCORE_MATH_FIND,    /* InfiniteBench */
    KVL_SCORE_MATH_FIND_SC, /* SCBench */
    KVL_SCORE_MATH_CALC,    /* InfiniteBench: values in order, until one is wrong */
    KVL_SCORE_DIALOGUE,     /* InfiniteBench: longdialogue_qa_eng */
    KVL_SCORE_IN_UPPER,     /* SCBench: qa_eng, many_shot */
    KVL_SCORE_VT_ROUNDED,   /* SCBench: vt */
    KVL_SCORE_NEEDLEBENCH,  /* NeedleBench v1: answers are the needle and its key word */
    KVL_SCORE_COLOR,        /* 2StageRetr */
    KVL_SCORE_EDIT,         /* 1 - edit distance / length of the longer one */
    KVL_SCORE_EDIT_ZH,      /* CLongEval: the same without punctuation, up to a key that follows */
    KVL_SCORE_MRCR,         /* answers are the text and what it has to begin with */
    KVL_SCORE_BABILONG,     /* classes are the words that may be answers */
    KVL_SCORE_SET_F1,       /* GraphWalks: a list at the end */
    KVL_SCORE_NUMBER,       /* the first number */
    KVL_SCORE_REGEX,        /* POSIX extended regular expressions */
    KVL_N_SCORERS,
};
/* Names as users write them, in order, NULL at the end. */
extern const char *const kvl_scorer_names[KVL_N_SCORERS + 1];

/* How a file has its answers: official scores of some scripts depend on it. */
enum kvl_gold_form {
    KVL_GOLD_ANY = 0, /* as a list of texts */
    KVL_GOLD_LIST,
    KVL_GOLD_TEXT, /* by itself: scripts that want a list go through its letters */
};

/* What an answer is compared with. */
struct kvl_gold {
    const char *const *answer; /* [n], n >= 1 */
    int32_t n;
    const char *const *cls; /* [n_cls]: classes of KVL_SCORE_CLASSIFICATION and _BABILONG */
    int32_t n_cls;
    const char *question; /* of KVL_SCORE_BABILONG, else NULL */
    enum kvl_gold_form form;
    bool numeric; /* numbers, where `form` is known: else texts */
};

struct kvl_answer_score {
    double official, strict; /* 0 to 1 */
};

/* KVL_EINVAL: the answers are not of the scorer's kind; KVL_ENOMEM. */
int kvl_score_answer(enum kvl_scorer scorer, const struct kvl_gold *gold, const char *prediction,
                     struct kvl_answer_score *out, struct kvl_err *err);
/* Chance of a right answer without the context; 0 where none can be told. */
double kvl_scorer_chance(enum kvl_scorer scorer);

#endif
