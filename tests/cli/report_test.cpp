// The commands for a timeline: train --trace, then report.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing_support::run_program;

class TimelineOfARun : public testing::Test {
 protected:
  testing_support::Outcome troika(const std::string& arguments) {
    return run_program("cd " + folder_.path().string() + " && exec " + TROIKA_PROGRAM + " " +
                       arguments);
  }
  std::filesystem::path run_file(const std::string& name) const {
    return folder_ / "runs/t" / name;
  }
  const TemporaryFolder folder_;
};

// Buckets of 1 KiB, so that there are several.
const std::string kTrain =
    "train --trainer.devices=2 --trainer.max_epochs=1 --model.name=mlp --model.hidden_width=16 "
    "--data.train_samples=96 "
    "--data.validation_samples=12 --data.global_batch_size=12 --comm.bucket_megabytes=0.001 "
    "--comm.first_bucket_megabytes=0.001 --run.name=t";

double end_of(const json& span) {
  return span["ts"].get<double>() + span["dur"].get<double>();
}

// Expects that the spans of a track follow each other or are nested. The clock counts nanoseconds.
void expect_nested(std::vector<json> spans) {
  std::ranges::stable_sort(spans, {}, [](const json& s) { return s["ts"].get<double>(); });
  std::vector<double> open;  // ends of the spans around
  for (const auto& span : spans) {
    while (!open.empty() && open.back() <= span["ts"].get<double>() + 1e-3) open.pop_back();
    if (!open.empty()) {
      EXPECT_LE(end_of(span), open.back() + 1e-3) << span;
    }
    open.push_back(end_of(span));
  }
}

// The events of one rank: spans by track and, for each bucket of each step, the times when it was
// ready and when its average began.
struct RankEvents {
  std::map<std::string, std::vector<json>> spans;
  std::map<std::pair<int, int>, double> ready, start;
};

std::vector<RankEvents> events_of(const json& file, size_t ranks) {
  std::map<std::pair<size_t, int>, std::string> tracks;
  for (const auto& event : file["traceEvents"]) {
    if (event["name"] == "thread_name") {
      tracks[{event["pid"], event["tid"]}] = event["args"]["name"];
    }
  }
  std::vector<RankEvents> found(ranks);
  for (const auto& event : file["traceEvents"]) {
    auto& rank = found.at(event["pid"]);
    const std::string phase = event["ph"];
    if (phase == "X") rank.spans[tracks.at({event["pid"], event["tid"]})].push_back(event);
    if (phase != "X" && phase != "i") continue;
    if (!event["args"].contains("bucket")) continue;
    auto& times = phase == "X" ? rank.start : rank.ready;
    const auto key = std::pair<int, int>(event["args"]["step"], event["args"]["bucket"]);
    EXPECT_TRUE(times.emplace(key, event["ts"]).second) << event;
  }
  return found;
}

std::multiset<std::string> names_of(const std::vector<json>& spans) {
  std::multiset<std::string> names;
  for (const auto& span : spans) names.insert(span["name"]);
  return names;
}

TEST_F(TimelineOfARun, HoldsAllRanksAndGoesIntoTheReport) {
  const auto outcome = troika(kTrain + " --trace");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const auto file = json::parse(read_file(run_file("trace.json")));
  const auto& errors = file["otherData"]["clock_error_microseconds"];
  ASSERT_EQ(errors.size(), 2u);
  EXPECT_EQ(errors[0], 0.0);
  EXPECT_GT(errors[1], 0.0);
  EXPECT_LT(errors[1], 1e6) << "half of the shortest of many round trips on this machine";
  const auto ranks = events_of(file, 2);
  for (const auto& rank : ranks) {
    for (const auto& [track, spans] : rank.spans) {
      SCOPED_TRACE(track);
      expect_nested(spans);
    }
    const auto compute = names_of(rank.spans.at("compute"));
    for (const char* name :
         {"step", "forward", "backward", "finish_backward", "optimizer", "other"}) {
      EXPECT_EQ(compute.count(name), 8u) << name;
    }
    EXPECT_EQ(names_of(rank.spans.at("data")).count("data wait"), 8u);
    EXPECT_EQ(compute.count("validation"), 1u);
    EXPECT_EQ(compute.count("checkpoint"), 1u);
    EXPECT_EQ(rank.ready.size(), rank.start.size());
    EXPECT_GT(rank.start.size(), 8u);
    for (const auto& [key, start] : rank.start) {
      EXPECT_LE(rank.ready.at(key), start) << "step " << key.first << ", bucket " << key.second;
    }
  }
  // No rank can end a collective before every rank has begun it.
  const double slack = errors[1].get<double>() + 1e-3;
  for (const auto& span : ranks[0].spans.at("communication")) {
    const auto key = std::pair<int, int>(span["args"]["step"], span["args"]["bucket"]);
    EXPECT_LE(ranks[1].start.at(key), end_of(span) + slack);
  }

  const auto phases = json::parse(read_file(run_file("summary.json")))["phase_milliseconds"];
  for (const char* name : {"data_wait", "forward", "backward", "exposed_communication", "optimizer",
                           "other", "step"}) {
    ASSERT_EQ(phases[name].size(), 2u) << name;
    EXPECT_GT(phases[name][1], 0.0) << name;
  }

  const auto report = troika("report runs/t");
  EXPECT_EQ(report.exit_code, 0) << report.err;
  EXPECT_EQ(report.out, "runs/t/report.html\n");
  EXPECT_THAT(read_file(run_file("report.html")), HasSubstr("What each rank did in step "));
}

TEST_F(TimelineOfARun, IsOffByDefaultAndNoneOfAnEarlierRunSurvives) {
  ASSERT_EQ(troika(kTrain + " --trainer.trace=true").exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(run_file("trace.json")));
  ASSERT_EQ(troika("report runs/t").exit_code, 0);
  ASSERT_EQ(troika(kTrain + " --run.overwrite=true").exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(run_file("trace.json")));
  EXPECT_FALSE(std::filesystem::exists(run_file("report.html")));
  ASSERT_EQ(troika("report runs/t").exit_code, 0);
  EXPECT_THAT(read_file(run_file("report.html")), HasSubstr("The run has no timeline."));
}

TEST_F(TimelineOfARun, ReportRefusesWhatIsNoRun) {
  const auto outcome = troika("report nowhere");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_EQ(
      outcome.err,
      "error: [checkpoint] nowhere is not the folder of a run; got no such folder, expected one "
      "that troika train wrote, e.g. runs/run\n");
}

}  // namespace
}  // namespace troika
