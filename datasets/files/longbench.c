/* longbench - LongBench (Bai et al., ACL 2024), and its parts of even length, LongBench-E.
 *
 * Files: data/<task>.jsonl and data/<task>_e.jsonl of the published archive.  Prompts, tokens to generate and
 * scorers are those of the scripts (github.com/THUDM/LongBench, LongBench/, MIT), byte for byte: scores depend
 * on them.  The length is what the scripts call the model's maximum.
 *
 * Deviations: Chinese words are single characters (the scripts: jieba), so that scores of multifieldqa_zh,
 * dureader and vcsum are not theirs.  samsum is not stopped at a line end, which its scorer does not see.
 */
#include "rows.h"

#define LETTERS "Chinese words are characters here, the benchmark's are jieba's"

#define LONGBENCH_E(X, e)                                                                          \
    X("qasper" e,                                                                                  \
      .prompt =                                                                                    \
          "You are given a scientific article and a question. Answer the question as concisely "   \
          "as you can, using a single phrase or sentence if possible. If the question cannot be "  \
          "answered based on the information in the article, write \"unanswerable\". If the "      \
          "question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not "    \
          "provide any explanation.\n\nArticle: {context}\n\n Answer the question based on the "   \
          "above article as concisely as you can, using a single phrase or sentence if possible. " \
          "If the question cannot be answered based on the information in the article, write "     \
          "\"unanswerable\". If the question is a yes/no question, answer \"yes\", \"no\", or "    \
          "\"unanswerable\". Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",     \
      .max_new = 128, .scorer = KVL_SCORE_F1)                                                      \
    X("multifieldqa_en" e,                                                                         \
      .prompt = "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the "     \
                "following question based on the above text, only give me the answer and do not "  \
                "output any other words.\n\nQuestion: {input}\nAnswer:",                           \
      .max_new = 64, .scorer = KVL_SCORE_F1)                                                       \
    X("hotpotqa" e,                                                                                \
      .prompt =                                                                                    \
          "Answer the question based on the given passages. Only give me the answer and do not "   \
          "output any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the " \
          "question based on the given passages. Only give me the answer and do not output any "   \
          "other words.\n\nQuestion: {input}\nAnswer:",                                            \
      .max_new = 32, .scorer = KVL_SCORE_F1)                                                       \
    X("2wikimqa" e,                                                                                \
      .prompt =                                                                                    \
          "Answer the question based on the given passages. Only give me the answer and do not "   \
          "output any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the " \
          "question based on the given passages. Only give me the answer and do not output any "   \
          "other words.\n\nQuestion: {input}\nAnswer:",                                            \
      .max_new = 32, .scorer = KVL_SCORE_F1)                                                       \
    X("gov_report" e,                                                                              \
      .prompt = "You are given a report by a government agency. Write a one-page summary of the "  \
                "report.\n\nReport:\n{context}\n\nNow, write a one-page summary of the "           \
                "report.\n\nSummary:",                                                             \
      .max_new = 512, .scorer = KVL_SCORE_ROUGE_L, .flags = KVL_ROWS_NOWHERE)                      \
    X("multi_news" e,                                                                              \
      .prompt =                                                                                    \
          "You are given several news passages. Write a one-page summary of all news. "            \
          "\n\nNews:\n{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",    \
      .max_new = 512, .scorer = KVL_SCORE_ROUGE_L, .flags = KVL_ROWS_NOWHERE)                      \
    X("trec" e,                                                                                    \
      .prompt = "Please determine the type of the question below. Here are some examples of "      \
                "questions.\n\n{context}\n{input}",                                                \
      .max_new = 64, .scorer = KVL_SCORE_CLASSIFICATION,                                           \
      .flags = KVL_ROWS_RAW | KVL_ROWS_FIRST_LINE | KVL_ROWS_NOWHERE)                              \
    X("triviaqa" e,                                                                                \
      .prompt =                                                                                    \
          "Answer the question based on the given passage. Only give me the answer and do not "    \
          "output any other words. The following are some examples.\n\n{context}\n\n{input}",      \
      .max_new = 32, .scorer = KVL_SCORE_F1, .flags = KVL_ROWS_RAW | KVL_ROWS_FIRST_LINE)          \
    X("samsum" e,                                                                                  \
      .prompt = "Summarize the dialogue into a few short sentences. The following are some "       \
                "examples.\n\n{context}\n\n{input}",                                               \
      .max_new = 128, .scorer = KVL_SCORE_ROUGE_L,                                                 \
      .flags = KVL_ROWS_RAW | KVL_ROWS_FIRST_LINE | KVL_ROWS_NOWHERE)                              \
    X("passage_count" e,                                                                           \
      .prompt =                                                                                    \
          "There are some paragraphs below sourced from Wikipedia. Some of them may be "           \
          "duplicates. Please carefully read these paragraphs and determine how many unique "      \
          "paragraphs there are after removing duplicates. In other words, how many "              \
          "non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the final "   \
          "count of unique paragraphs after removing duplicates. The output format should only "   \
          "contain the number, such as 1, 2, 3, and so on.\n\nThe final answer is: ",              \
      .max_new = 32, .scorer = KVL_SCORE_COUNT, .flags = KVL_ROWS_NOWHERE)                         \
    X("passage_retrieval_en" e,                                                                    \
      .prompt = "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine " \
                "which paragraph the abstract is from.\n\n{context}\n\nThe following is an "       \
                "abstract.\n\n{input}\n\nPlease enter the number of the paragraph that the "       \
                "abstract is from. The answer format must be like \"Paragraph 1\", \"Paragraph "   \
                "2\", etc.\n\nThe answer is: ",                                                    \
      .max_new = 32, .scorer = KVL_SCORE_RETRIEVAL)                                                \
    X("lcc" e, .prompt = "Please complete the code given below. \n{context}Next line of code:\n",  \
      .max_new = 64, .scorer = KVL_SCORE_CODE_SIM, .flags = KVL_ROWS_RAW | KVL_ROWS_NOWHERE)       \
    X("repobench-p" e,                                                                             \
      .prompt = "Please complete the code given below. \n{context}{input}Next line of code:\n",    \
      .max_new = 64, .scorer = KVL_SCORE_CODE_SIM, .flags = KVL_ROWS_RAW | KVL_ROWS_NOWHERE)

#define LONGBENCH(X)                                                                                                                   \
    LONGBENCH_E(X, "")                                                                                                                 \
    X("narrativeqa",                                                                                                                   \
      .prompt = "You are given a story, which can be either a novel or a movie script, and a "                                         \
                "question. Answer the question asconcisely as you can, using a single phrase if "                                      \
                "possible. Do not provide any explanation.\n\nStory: {context}\n\nNow, answer "                                        \
                "the question based on the story asconcisely as you can, using a single phrase "                                       \
                "if possible. Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",                                        \
      .max_new = 128, .scorer = KVL_SCORE_F1)                                                                                          \
    X("multifieldqa_zh",                                                                                                               \
      .prompt = "阅读以下文字并用中文简短回答：\n\n{context}"                                                           \
                "\n\n现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。\n\n" \
                "问题：{input}\n回答：",                                                                                               \
      .max_new = 64, .scorer = KVL_SCORE_F1_ZH, .unofficial = LETTERS)                                                                 \
    X("musique",                                                                                                                       \
      .prompt =                                                                                                                        \
          "Answer the question based on the given passages. Only give me the answer and do not "                                       \
          "output any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the "                                     \
          "question based on the given passages. Only give me the answer and do not output any "                                       \
          "other words.\n\nQuestion: {input}\nAnswer:",                                                                                \
      .max_new = 32, .scorer = KVL_SCORE_F1)                                                                                           \
    X("dureader",                                                                                                                      \
      .prompt = "请基于给定的文章回答下述问题。\n\n文章：{context}"                                                  \
                "\n\n请基于上述文章回答下面的问题。\n\n问题：{input}\n回答：",                                                         \
      .max_new = 128, .scorer = KVL_SCORE_ROUGE_L_ZH, .flags = KVL_ROWS_NOWHERE,                                                       \
      .unofficial = LETTERS)                                                                                                           \
    X("qmsum",                                                                                                                         \
      .prompt = "You are given a meeting transcript and a query containing a question or "                                             \
                "instruction. Answer the query in one or more "                                                                        \
                "sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the "                                          \
                "above meeting transcript in one or more sentences.\n\nQuery: {input}\nAnswer:",                                       \
      .max_new = 512, .scorer = KVL_SCORE_ROUGE_L, .flags = KVL_ROWS_NOWHERE)                                                          \
    X("vcsum",                                                                                                                         \
      .prompt = "下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。\n会议记录：\n{"       \
                "context}\n\n会议总结：",                                                                                              \
      .max_new = 512, .scorer = KVL_SCORE_ROUGE_L_ZH, .flags = KVL_ROWS_NOWHERE,                                                       \
      .unofficial = LETTERS)                                                                                                           \
    X("lsht", .prompt = "请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}",                                                \
      .max_new = 64, .scorer = KVL_SCORE_CLASSIFICATION,                                                                               \
      .flags = KVL_ROWS_RAW | KVL_ROWS_FIRST_LINE | KVL_ROWS_NOWHERE)                                                                  \
    X("passage_retrieval_zh",                                                                                                          \
      .prompt =                                                                                                                        \
          "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{context}"  \
          "\n\n下面是一个摘要\n\n{input}"                                                                                       \
          "\n\n请输入摘要所属段落的编号。答案格式必须是\"段落1\"，\"段落2\"等格式\n\n答案是：",                                        \
      .max_new = 32, .scorer = KVL_SCORE_RETRIEVAL)                                                                                    \
    LONGBENCH_E(X, "_e")

static const struct kvl_rows_set longbench_sets[] = { LONGBENCH(KVL_ROWS_SET) };
static const char *const longbench_names[] = { LONGBENCH(KVL_ROWS_NAME) NULL };

static const struct kvl_rows_kind longbench_kind = {
    .name = "longbench",
    .paths = { "%s.jsonl", "data/%s.jsonl" },
    .context = "context",
    .question = "input",
    .answers = "answers",
    .classes = "all_classes",
    .id = "_id",
    .keep = { "answers", "all_classes", "length" },
    .typed = true,
    .around = true,
    .halves = true,
};

KVL_ROWS_TASK(
    longbench, "hotpotqa", "middle", "LongBench, from its files", "Bai et al., LongBench, ACL 2024",
    "questions, summaries, examples and code over long texts: 21 tasks, 13 of them also as _e");

KVL_TASK_EXPORT(longbench)
