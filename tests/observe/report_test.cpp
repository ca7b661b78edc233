#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "tests/support/errors.h"
#include "troika/base/config.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/observe/report/page.h"
#include "troika/observe/report/run_record.h"
#include "troika/observe/report/stragglers.h"

namespace troika::observe::report {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Rank 1 computes longer, and rank 0 waits for it.
const std::vector<PhaseTime> kUneven{
    {"data_wait", {1, 1, 1}},   {"forward", {10, 14, 10}},
    {"backward", {20, 21, 20}}, {"exposed_communication", {6, 1, 6}},
    {"optimizer", {2, 2, 2}},   {"other", {1, 1, 1}},
    {"step", {40, 40, 40}}};

RunSummary three_ranks() {
  return {.name = "<b>&\"uneven\"",
          .status = "finished",
          .world_size = 3,
          .steps = 300,
          .samples = 36,
          .train_loss = 0.5,
          .validation_accuracy = 0.875,
          .samples_per_second = 100,
          .median_step_milliseconds = 40,
          .phase_milliseconds = kUneven,
          .peak_resident_bytes = {1 << 20, 1 << 20, 1 << 20}};
}

// A step of 100 µs. On rank 0, the backward pass is from 40 to 80; one bucket overlaps it, and
// another one overlaps it by half. On rank 1, a bucket interrupts it.
const char* const kTrace = R"({"otherData": {"clock_error_microseconds": [0, 2.5]}, "traceEvents": [
{"ph":"X","name":"step","pid":0,"tid":1,"ts":0,"dur":900,"args":{"step":0}},
{"ph":"X","name":"backward","pid":0,"tid":1,"ts":0,"dur":800,"args":{"step":0}},
{"ph":"X","name":"step","pid":0,"tid":1,"ts":1000,"dur":100,"args":{"step":1}},
{"ph":"X","name":"backward","pid":0,"tid":1,"ts":1040,"dur":40,"args":{"step":1}},
{"ph":"i","name":"bucket ready","pid":0,"tid":1,"ts":1045,"s":"t","args":{"step":1,"bucket":0}},
{"ph":"X","name":"bucket","pid":0,"tid":2,"ts":1050,"dur":10,"args":{"step":1,"bucket":0}},
{"ph":"X","name":"bucket","pid":0,"tid":2,"ts":1070,"dur":20,"args":{"step":1,"bucket":1}},
{"ph":"X","name":"bucket","pid":1,"tid":1,"ts":1050,"dur":10,"args":{"step":1,"bucket":0}},
{"ph":"X","name":"backward","pid":1,"tid":1,"ts":1040,"dur":40,"args":{"step":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0 on a<b"}},
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"rank 1 on c"}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_name","pid":0,"tid":2,"args":{"name":"communication"}}]})";

// Returns the changed options of a program with two options.
std::vector<config::Setting> changed_options(const std::string& toml) {
  std::string name = "run";
  int64_t epochs = 0;
  config::Table table;
  table.add("run.name", &name, "name of the run");
  table.add("run.epochs", &epochs, "epochs of a run");
  table.parse(toml, "config.toml");
  return table.changed();
}

class Report : public testing::Test {
 protected:
  Report() {
    write_file_atomically(folder_ / "config.toml", "[run]\nname = \"a<b\"\n");
    write_file_atomically(folder_ / "metrics.csv",
                          "step,train/loss,validation/accuracy\n1,2.5,\n2,nan,\n3,1.5,0.875\n4,1");
  }
  // Returns the page without the names that cells of wide tables have for narrow windows.
  std::string page() {
    static const std::regex name(R"re( data-name="[^"]*")re");
    return std::regex_replace(read_file(write_report(folder_.path(), changed_options)), name, "");
  }
  const TemporaryFolder folder_;
};

TEST(Metrics, AreReadByColumn) {
  const auto metrics = parse_metrics("step,a,b\n1,2.5,\n2,inf,3\n3,4", "m.csv");
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_EQ(metrics[0].name, "a");
  ASSERT_EQ(metrics[0].points.size(), 2u) << "without the line that a kill cut";
  EXPECT_EQ(metrics[0].points[0].y, 2.5);
  EXPECT_TRUE(std::isinf(metrics[0].points[1].y));
  ASSERT_EQ(metrics[1].points.size(), 1u);
  EXPECT_EQ(metrics[1].points[0].x, 2);
}

TEST(Metrics, DamagedColumnNamesAreRefused) {
  EXPECT_ERROR(parse_metrics("", "m.csv"), ErrorKind::usage,
               "[observe] line 1 of m.csv is damaged; got ``, expected column names, the first of "
               "them `step`");
}

TEST(Metrics, DamagedRowsAreNamedAndLeftOut) {
  testing::internal::CaptureStderr();
  const auto metrics = parse_metrics("step,a\n1,2\n2,x\n3,4,5\n4,6\n", "m.csv");
  const auto warnings = testing::internal::GetCapturedStderr();
  EXPECT_THAT(warnings, HasSubstr("line 3 of m.csv is damaged and left out"));
  EXPECT_THAT(warnings, HasSubstr("line 4 of m.csv is damaged and left out"));
  ASSERT_EQ(metrics.size(), 1u);
  ASSERT_EQ(metrics[0].points.size(), 2u);
  EXPECT_EQ(metrics[0].points[1].x, 4);
  EXPECT_EQ(metrics[0].points[1].y, 6);
}

TEST(Stragglers, AreFoundByTheirOwnTimeThoughAllStepsTakeEquallyLong) {
  const auto found = find_stragglers(kUneven);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rank, 1);
  EXPECT_DOUBLE_EQ(found[0].own_milliseconds, 39);
  EXPECT_NEAR(found[0].excess, 39.0 / 34 - 1, 1e-12);
  EXPECT_EQ(found[0].phase, "forward");
  EXPECT_DOUBLE_EQ(found[0].phase_excess_milliseconds, 4);
}

TEST(Stragglers, TenPercentIsNotYetOne) {
  EXPECT_TRUE(find_stragglers({{"forward", {10, 10, 10.9}}}).empty());
  EXPECT_EQ(find_stragglers({{"forward", {10, 10, 11.1}}}).size(), 1u);
  EXPECT_TRUE(find_stragglers({{"forward", {NAN, NAN}}}).empty());
}

TEST_F(Report, ReadsATrace) {
  write_file_atomically(folder_ / "trace.json", kTrace);
  const auto trace = read_trace(folder_ / "trace.json");
  ASSERT_EQ(trace.ranks.size(), 2u);
  EXPECT_EQ(trace.ranks[0].spans.size(), 6u);
  const auto rank = bucket_overlap(trace.ranks[0]);
  EXPECT_NEAR(rank.communication, 0.030, 1e-12) << "without the first step";
  EXPECT_NEAR(rank.hidden, 0.020, 1e-12);
  const auto one_thread = bucket_overlap(trace.ranks[1]);
  EXPECT_NEAR(one_thread.communication, 0.010, 1e-12);
  EXPECT_EQ(one_thread.hidden, 0) << "on the thread of the backward pass";
  EXPECT_EQ(typical_step(trace), 1);
}

// Expects that every opened element is closed, in order.
void expect_balanced(const std::string& html) {
  static const std::regex tag(R"(<(/?)([a-z0-9]+)((?:[^">]|"[^"]*")*)>)");
  std::vector<std::string> open;
  for (std::sregex_iterator at(html.begin(), html.end(), tag), end; at != end; ++at) {
    const std::string name = (*at)[2], rest = (*at)[3];
    if (name == "meta" || rest.ends_with("/")) continue;
    if ((*at)[1].length() == 0) {
      open.push_back(name);
      continue;
    }
    ASSERT_FALSE(open.empty()) << name;
    ASSERT_EQ(open.back(), name);
    open.pop_back();
  }
  EXPECT_TRUE(open.empty());
}

TEST_F(Report, OfAWholeRun) {
  write_summary(folder_ / "summary.json", three_ranks());
  write_file_atomically(folder_ / "trace.json", kTrace);
  const auto html = page();
  expect_balanced(html);
  EXPECT_THAT(html, AllOf(HasSubstr("<h1>&lt;b&gt;&amp;&quot;uneven&quot;</h1>"),
                          HasSubstr("<dt>validation accuracy</dt><dd>87.5 %</dd>"),
                          HasSubstr("train/loss: 2.5 at step 1"), Not(HasSubstr("nan")),
                          HasSubstr("rank 1, forward: 14 ms"),
                          HasSubstr("<th scope=\"row\">rank 1</th><td>39</td><td>+14.7 %</td><td>"
                                    "forward (+4 ms)</td>"),
                          HasSubstr("50.0 % of the time in which gradient buckets were averaged"),
                          HasSubstr("<th scope=\"row\">rank 0 on a&lt;b</th>"),
                          HasSubstr("What each rank did in step 1"),
                          HasSubstr("<code>run.name = &quot;a&lt;b&quot;</code> <span>default "
                                    "<code>&quot;run&quot;</code>")));
  EXPECT_THAT(html, AllOf(HasSubstr("prefers-color-scheme: dark"), Not(HasSubstr("<script")),
                          Not(HasSubstr("http:")), Not(HasSubstr("https:")),
                          Not(HasSubstr(" src=")), Not(HasSubstr("@import"))))
      << "needs nothing else";
}

// troika simulate --trace RUN/simulated.json.
TEST_F(Report, ComparesARunWithItsSimulation) {
  write_file_atomically(folder_ / "trace.json", kTrace);
  EXPECT_THAT(page(), Not(HasSubstr("The simulated run")));
  write_file_atomically(folder_ / "simulated.json",
                        R"({"otherData": {"clock_error_microseconds": [0]}, "traceEvents": [
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0, simulated"}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"compute"}},
{"ph":"X","name":"step","pid":0,"tid":1,"ts":0,"dur":75,"args":{"step":0}},
{"ph":"X","name":"backward","pid":0,"tid":1,"ts":10,"dur":30,"args":{"step":0}},
{"ph":"X","name":"backward","pid":0,"tid":1,"ts":50,"dur":20,"args":{"step":0}}]})");
  const auto html = page();
  expect_balanced(html);
  // 0.05 ms, against 0.04 ms on each of the two ranks in the step after the first.
  EXPECT_THAT(html,
              AllOf(HasSubstr("A step of the simulation, on 1 of 1 ranks:"),
                    HasSubstr("What each rank did in step 0"),
                    HasSubstr("<th scope=\"row\">backward</th><td>0.05</td><td>0.04</td>"
                              "<td>25.0 %</td>"),
                    HasSubstr("<th scope=\"row\">forward</th><td>–</td><td>–</td><td>–</td>")));
}

TEST_F(Report, ShowsEveryMetric) {
  write_file_atomically(
      folder_ / "metrics.csv",
      "step,epoch,train/lr,f1,throughput/mfu,own/a,own/b,own/c,own/d,own/e,own/f\n"
      "2,0,0.25,0.5,0.125,1,2,3,4,5,6\n4,1,1e-05,0.75,0.375,1,2,3,4,5,6\n");
  const auto html = page();
  expect_balanced(html);
  for (const char* point :
       {"train/lr: 1e-05 at step 4", "f1: 0.75 at step 4", "throughput/mfu: 0.375 at step 4",
        "own/a: 1 at step 2", "own/f: 6 at step 4", "<summary>own: 6 charts</summary>"}) {
    EXPECT_THAT(html, HasSubstr(point));
  }
  EXPECT_THAT(html, Not(HasSubstr("epoch: ")));
}

TEST_F(Report, ListsOptionsThatDifferFromTheirDefaults) {
  write_file_atomically(folder_ / "config.toml", "[run]\nname = \"run\"\nepochs = 7\n");
  EXPECT_THAT(page(),
              AllOf(HasSubstr("<code>run.epochs = 7</code> <span>default <code>0</code>"),
                    HasSubstr("<dd>epochs of a run</dd>"), Not(HasSubstr("<code>run.name"))));
  write_file_atomically(folder_ / "config.toml", "[run]\nname = \"run\"\nepochs = 0\n");
  EXPECT_THAT(page(), HasSubstr("<h2>Options that differ from their defaults</h2>\n<p>None.</p>"));
  write_file_atomically(folder_ / "config.toml", "[run]\nof_another_version = 1\n");
  EXPECT_THAT(page(), AllOf(HasSubstr("This version does not know them all: [config] unknown key"),
                            HasSubstr("of_another_version = 1")));
}

TEST_F(Report, DrawsThePassesAndBubblesOfAPipeline) {
  write_summary(folder_ / "summary.json", three_ranks());
  EXPECT_THAT(page(), Not(HasSubstr("Bubble")));
  auto summary = three_ranks();
  summary.bubble = {0.125, 0.25, 0.5};
  write_summary(folder_ / "summary.json", summary);
  EXPECT_THAT(page(), AllOf(HasSubstr("Bubble of each rank"), HasSubstr("25.0 %"),
                            Not(HasSubstr("The passes of each rank"))));
  write_file_atomically(folder_ / "trace.json",
                        R"({"otherData": {"clock_error_microseconds": [0, 1]},
"traceEvents": [
{"ph":"X","name":"step","pid":0,"tid":1,"ts":1000,"dur":9000,"args":{"step":1}},
{"ph":"X","name":"0F0","pid":0,"tid":2,"ts":1000,"dur":2000,"args":{"step":1}},
{"ph":"X","name":"0W12","pid":0,"tid":2,"ts":8000,"dur":1000,"args":{"step":1}},
{"ph":"X","name":"1RECV_F0","pid":1,"tid":3,"ts":1000,"dur":2000,"args":{"step":1}},
{"ph":"X","name":"1F0","pid":1,"tid":2,"ts":3000,"dur":2500,"args":{"step":1}},
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0"}},
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"rank 1"}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_name","pid":0,"tid":2,"args":{"name":"passes"}},
{"ph":"M","name":"thread_name","pid":1,"tid":2,"args":{"name":"passes"}},
{"ph":"M","name":"thread_name","pid":1,"tid":3,"args":{"name":"messages"}}]})");
  EXPECT_THAT(page(), AllOf(HasSubstr("The passes of each rank in step 1"),
                            HasSubstr("0W12: 1.000 ms from 7.000 ms"),
                            HasSubstr("1F0: 2.500 ms from 2.000 ms"), Not(HasSubstr("1RECV_F0"))));
}

TEST_F(Report, PredictedMemoryIsBesideMeasured) {
  auto summary = three_ranks();
  summary.peak_tensor_bytes = {2 << 20, 5 << 19, 3 << 20};
  summary.predicted_tensor_bytes = {9 << 18, 9 << 18, 9 << 18};
  write_summary(folder_ / "summary.json", summary);
  const auto html = page();
  EXPECT_THAT(html, AllOf(HasSubstr("predicted, predicted: 2.25 MiB"),
                          HasSubstr("rank 1, measured: 2.5 MiB"),
                          HasSubstr("<th scope=\"row\">rank 2</th><td>2.2 MiB</td><td>3.0 MiB</td>"
                                    "<td>1.0 MiB</td>")));
}

TEST_F(Report, RooflineSetsThePhasesBesideWhatTheMachineCanDo) {
  auto summary = three_ranks();
  write_summary(folder_ / "summary.json", summary);
  EXPECT_THAT(page(), HasSubstr("<code>--throughput.enabled=true</code> has runs do so"));
  summary.roofline = {.flops_per_second = 1e12,
                      .bytes_per_second = 50e9,
                      .work = {{"forward", 3.4e9, 0.1e9, 4},
                               {"backward", 6.1e9, 0.2e9, 8},
                               {"optimizer", 0, 0.05e9, 1}}};
  write_summary(folder_ / "summary.json", summary);
  const auto html = page();
  expect_balanced(html);
  EXPECT_THAT(
      html,
      AllOf(HasSubstr("The step computes 237.5 GFLOP/s, 23.8 % of the 1000 GFLOP/s that products "
                      "of large matrices reach on this machine. Its memory moves 50 GB/s."),
            HasSubstr("Exposed communication takes 10.8 % of the step."),
            HasSubstr("Rank 1 is the slowest: it takes 39 ms a step by itself, the ranks&#39; mean "
                      "is 35.67 ms."),
            HasSubstr("<th scope=\"row\">forward</th><td>11.33</td><td>28.3 %</td><td>3.4</td>"
                      "<td>300</td><td>30.0 %</td><td>0.1</td><td>8.824</td><td>4</td>"
                      "<td>35.3 %</td>"),
            HasSubstr("<th scope=\"row\">optimizer</th><td>2</td><td>5.0 %</td><td>–</td><td>–</td>"
                      "<td>–</td><td>0.05</td><td>25</td><td>1</td><td>50.0 %</td>"),
            HasSubstr("<th scope=\"row\">data wait</th><td>1</td><td>2.5 %</td><td>–</td><td>–</td>"
                      "<td>–</td><td>–</td><td>–</td><td>–</td><td>–</td>"),
            HasSubstr("<title>backward: 300 GFLOP/s at 30.5 FLOP/byte</title>")));
}

TEST_F(Report, ClaimsNoStragglersOfAMoment) {
  auto summary = three_ranks();
  write_summary(folder_ / "summary.json", summary);
  EXPECT_THAT(page(), HasSubstr("Ranks that the others wait for"));
  summary.steps = 25;
  write_summary(folder_ / "summary.json", summary);
  EXPECT_THAT(page(), AllOf(Not(HasSubstr("Ranks that the others wait for")),
                            HasSubstr("<p>Too short to tell: 25 steps in 1 s. It takes 20 steps "
                                      "and 5 s of them")));
  summary.steps = 19;
  summary.median_step_milliseconds = 4000;
  write_summary(folder_ / "summary.json", summary);
  EXPECT_THAT(page(), HasSubstr("<p>Too short to tell: 19 steps in 1:16."));
}

TEST_F(Report, OfAFailedRunBeginsWithTheCause) {
  auto summary = three_ranks();
  summary.status = "failed";
  summary.failure = "[observe] the disk <b> is full";
  write_summary(folder_ / "summary.json", summary);
  const auto html = page();
  expect_balanced(html);
  const auto cause = html.find(
      "<p class=\"failure\"><strong>The run failed:</strong> [observe] the disk &lt;b&gt; is "
      "full</p>");
  ASSERT_NE(cause, std::string::npos);
  EXPECT_LT(cause, html.find("<dl class=\"facts\">"));
}

TEST_F(Report, SaysWhyAShortRunHasNoCurveOfSteps) {
  auto short_run = three_ranks();
  short_run.steps = 3;
  write_summary(folder_ / "summary.json", short_run);
  EXPECT_THAT(page(), Not(HasSubstr("logged the loss of none")));
  write_file_atomically(folder_ / "metrics.csv", "step,train/epoch_loss\n3,1.5\n");
  EXPECT_THAT(page(),
              HasSubstr("The run made 3 steps and logged the loss of none of them: a smaller "
                        "trainer.log_every_n_steps shows"));
}

TEST_F(Report, OfARunThatWasKilled) {
  const auto html = page();
  expect_balanced(html);
  EXPECT_THAT(html, AllOf(HasSubstr("There is no summary.json"),
                          HasSubstr("<code>troika train CONFIG --trace</code> writes one"),
                          HasSubstr("train/loss: 1.5 at step 3")));
}

TEST_F(Report, RefusesWhatIsNoRun) {
  const std::string nowhere = folder_ / "nowhere";
  EXPECT_ERROR(write_report(nowhere, changed_options), ErrorKind::usage,
               "[observe] " + nowhere +
                   " is not the folder of a run; got no such folder, expected "
                   "one that troika train wrote, e.g. runs/run");
  std::filesystem::remove(folder_ / "config.toml");
  EXPECT_THROW(page(), Error);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "report.html"));
}

// Returns the message of the error thrown by making the page.
std::string failure(const std::filesystem::path& folder) {
  try {
    write_report(folder, changed_options);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage);
    return error.what();
  }
  return "nothing";
}

TEST_F(Report, NamesTheFileThatIsDamaged) {
  const auto summary = folder_ / "summary.json", trace = folder_ / "trace.json";
  for (const char* text : {"{", "[]", R"({"name": "a"})", R"({"name": 3})"}) {
    write_file_atomically(summary, text);
    EXPECT_THAT(failure(folder_.path()), HasSubstr(summary.string() + " is damaged; got ")) << text;
  }
  auto wrong = three_ranks();
  wrong.world_size = 2;
  write_summary(summary, wrong);
  EXPECT_THAT(failure(folder_.path()), HasSubstr("times of data_wait for another number of ranks"));
  wrong = three_ranks();
  wrong.peak_tensor_bytes = {1, 2};
  write_summary(summary, wrong);
  EXPECT_THAT(failure(folder_.path()),
              HasSubstr("peaks of memory for another number of ranks than world_size"));
  write_summary(summary, three_ranks());
  std::string other_rank = kTrace;
  other_rank.replace(other_rank.find("\"pid\":0"), 7, "\"pid\":7");
  for (const std::string& text :
       {std::string("{\"traceEvents\": ["), std::string("{}"), other_rank}) {
    write_file_atomically(trace, text);
    EXPECT_THAT(failure(folder_.path()), HasSubstr(trace.string() + " is damaged; got ")) << text;
  }
}

}  // namespace
}  // namespace troika::observe::report
