// Reports from hand-made records of jobs that failed in each of the known ways.
#include "troika/comm/diagnostics/flight_report.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika::comm {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr double kStart = 1800000000;  // 2027-01-15 08:00:00 UTC

// Times are seconds after kStart; null if it did not happen.
json call(int sequence, const std::string& state, json started, json ended,
          const std::string& operation = "all_reduce", int count = 8) {
  const auto at = [](const json& time) {
    return time.is_null() ? time : json(kStart + time.get<double>());
  };
  return {{"sequence", sequence},   {"operation", operation}, {"type", "Float"},
          {"count", count},         {"bytes", 4 * count},     {"label", "grad"},
          {"site", "step.cpp:7"},   {"state", state},         {"queued", at(started)},
          {"started", at(started)}, {"ended", at(ended)}};
}

json finished(int sequence, double ended) {
  return call(sequence, "finished", ended - 0.5, ended);
}

json failed(int sequence, double started, double ended) {
  return call(sequence, "failed", started, ended);
}

json answer(int sequence, bool finished, bool left) {
  return {{"sequence", sequence},
          {"finished", finished},
          {"left", left},
          {"call", fmt::format("all_reduce #{} 'grad' of Float x 8 sum", sequence)}};
}

class FlightReport : public testing::Test {
 protected:
  // Written `now` seconds after kStart, with the cause "rank R's cause" unless that is ruled out.
  void record(int rank, int size, double now, json calls, json statuses = json::array(),
              const std::string& group = "world", bool with_cause = true) {
    const json content = {{"group", group},
                          {"rank", rank},
                          {"size", size},
                          {"backend", "gloo"},
                          {"cause", with_cause ? fmt::format("rank {}'s cause", rank) : ""},
                          {"host", "n1"},
                          {"pid", 100 + rank},
                          {"now", kStart + now},
                          {"statuses", std::move(statuses)},
                          {"calls", std::move(calls)}};
    write(fmt::format("{}-rank{}.json", group, rank), content.dump(1));
  }
  void write(const std::string& name, const std::string& content) {
    write_file_atomically(folder_ / name, content);
  }
  std::string report() const { return flight_report(folder_.path()); }

  const TemporaryFolder folder_;
};

TEST_F(FlightReport, RankThatNeverCame) {
  record(0, 3, 70.5, {finished(6, 9), failed(7, 10, 70)});
  record(1, 3, 70.5, {finished(6, 9), failed(7, 11.5, 70.25)});
  record(2, 3, 71, {finished(6, 9)});
  EXPECT_EQ(
      report(),
      "Group world (3 ranks, gloo) parted at all_reduce #7 'grad' (step.cpp:7).\n"
      "Ranks 0, 1 waited in it for 58.8 to 60.0 s.\n"
      "Rank 2 never came; last finished all_reduce #6 'grad' (step.cpp:7), 61.0 s before "
      "rank 0 failed.\n"
      "The first to report a failure was rank 0 on n1, at 2027-01-15 08:01:10 UTC: rank 0's cause\n"
      "\n"
      "rank  last call                          state     seconds since\n"
      "   0  all_reduce #7 'grad' (step.cpp:7)  failed             60.5\n"
      "   1  all_reduce #7 'grad' (step.cpp:7)  failed             59.0\n"
      "   2  all_reduce #6 'grad' (step.cpp:7)  finished           62.0\n");
}

// Records of a part of a world of several axes.
TEST_F(FlightReport, RanksHaveTheirNumbersInTheWorldAndTheirCoordinates) {
  const auto write_record = [&](int rank, json world_ranks) {
    const json content = {{"group", "group1-of-4"},
                          {"rank", rank},
                          {"size", 4},
                          {"world_ranks", std::move(world_ranks)},
                          {"places", {"tensor 0", "tensor 1", "tensor 2", "tensor 3"}},
                          {"backend", "gloo"},
                          {"cause", "none came"},
                          {"host", "n1"},
                          {"pid", 100},
                          {"now", kStart + 70.5},
                          {"statuses", json::array()},
                          {"calls", {finished(6, 9), failed(7, 10, 70)}}};
    write(fmt::format("group1-of-4-rank{}.json", rank), content.dump(1));
  };
  write_record(3, {4, 5, 6, 10});
  EXPECT_EQ(
      report(),
      "Group group1-of-4 (4 ranks, gloo) parted at all_reduce #7 'grad' (step.cpp:7).\n"
      "Rank 10 = tensor 3 waited in it for 60.0 s.\n"
      "Ranks 4-6 left no record that can be used and answered nobody: killed or unreachable.\n"
      "The first to report a failure was rank 10 = tensor 3 on n1, at 2027-01-15 08:01:10 UTC: "
      "none came\n"
      "\n"
      "         rank  last call                          state      seconds since\n"
      " 4 = tensor 0  -                                  no record              -\n"
      " 5 = tensor 1  -                                  no record              -\n"
      " 6 = tensor 2  -                                  no record              -\n"
      "10 = tensor 3  all_reduce #7 'grad' (step.cpp:7)  failed              60.5\n");
  write_record(3, {4, 5});
  EXPECT_THROW(report(), Error) << "2 world ranks of 4";
}

TEST_F(FlightReport, RankInAnEarlierCall) {
  record(0, 3, 70, {finished(6, 9), failed(7, 10, 70)});
  record(1, 3, 70, {call(6, "running", 8, nullptr), call(7, "queued", nullptr, nullptr)});
  record(2, 3, 70, {finished(6, 9)});
  EXPECT_THAT(report(), HasSubstr("parted at all_reduce #6 'grad' (step.cpp:7).\n"
                                  "Rank 1 waited in it for 62.0 s.\n"
                                  "Rank 2 had finished it.\n"
                                  "Rank 0 had finished it and begun all_reduce #7 'grad' "
                                  "(step.cpp:7).\n"
                                  "The first to report a failure was rank 0 "));
}

TEST_F(FlightReport, DifferentCalls) {
  record(0, 3, 10.5, {failed(0, 10, 10.25)});
  record(1, 3, 10.5, {call(0, "failed", 10, 10.125, "broadcast", 4)});
  record(2, 3, 10.5, {failed(0, 10, 10.25)});
  EXPECT_EQ(
      report(),
      "Group world (3 ranks, gloo) made different calls as #0.\n"
      "Ranks 0, 2 called all_reduce #0 'grad' (step.cpp:7) of Float x 8.\n"
      "Rank 1 called broadcast #0 'grad' (step.cpp:7) of Float x 4.\n"
      "Ranks 0-2 waited in it for 0.1 to 0.2 s.\n"
      "The first to report a failure was rank 1 on n1, at 2027-01-15 08:00:10 UTC: rank 1's cause\n"
      "\n"
      "rank  last call                          state   seconds since\n"
      "   0  all_reduce #0 'grad' (step.cpp:7)  failed            0.5\n"
      "   1  broadcast #0 'grad' (step.cpp:7)   failed            0.5\n"
      "   2  all_reduce #0 'grad' (step.cpp:7)  failed            0.5\n");
}

TEST_F(FlightReport, AllRanksInTheCall) {
  for (int rank = 0; rank < 4; ++rank) record(rank, 4, 71, {failed(7, 10 + 0.1 * rank, 70)});
  EXPECT_THAT(report(), HasSubstr("Group world (4 ranks, gloo) failed in all_reduce #7 'grad' "
                                  "(step.cpp:7).\n"
                                  "Ranks 0-3 waited in it for 59.7 to 60.0 s.\n"
                                  "Nobody was missing: look at the network, or raise the "
                                  "time-out.\n"));
}

TEST_F(FlightReport, Stragglers) {
  for (int rank = 0; rank < 5; ++rank) {
    const double start = rank == 1 ? 50 : rank == 3 ? 56 : 10 + 0.25 * rank;
    record(rank, 5, 71, {failed(7, start, 70)});
  }
  const auto text = report();
  EXPECT_THAT(text, HasSubstr("Ranks 1, 3 came straggling, 39.0 to 45.0 s after the others.\n"));
  EXPECT_THAT(text, Not(HasSubstr("Nobody was missing")));
}

TEST_F(FlightReport, MostCannotBeStragglers) {
  for (int rank = 0; rank < 3; ++rank) record(rank, 3, 71, {failed(7, rank ? 40 : 10, 70)});
  EXPECT_THAT(report(), Not(HasSubstr("straggling")));
}

TEST_F(FlightReport, RanksWithoutARecord) {
  const json statuses = {answer(7, false, false), answer(6, true, true),  nullptr, nullptr,
                         answer(6, true, false),  answer(7, false, false)};
  record(0, 6, 71, {failed(7, 10, 70)}, statuses);
  const auto text = report();
  EXPECT_THAT(text, HasSubstr("Ranks 0, 5 waited in it for 60.0 s.\n"));
  EXPECT_THAT(text, HasSubstr("Rank 1 never came, but left the group in peace; last heard of in "
                              "all_reduce #6 'grad' of Float x 8 sum.\n"));
  EXPECT_THAT(text, HasSubstr("Rank 4 never came and left no record; last heard of in all_reduce "
                              "#6 'grad' of Float x 8 sum.\n"));
  EXPECT_THAT(text, HasSubstr("Ranks 2, 3 left no record that can be used and answered nobody: "
                              "killed or unreachable.\n"));
  EXPECT_THAT(text, HasSubstr("\n   3  -  "));
  EXPECT_THAT(text, HasSubstr("  no record, running  "));
}

TEST_F(FlightReport, TheGroupThatFailedFirstComesFirst) {
  record(0, 2, 80, {finished(3, 9), failed(4, 19, 79.5)});
  record(1, 2, 80, {finished(3, 9)}, json::array(), "world", false);
  record(0, 2, 80, {failed(2, 10, 70)}, json::array(), "world.3");
  record(1, 2, 80, {failed(2, 10, 70)}, json::array(), "world.3");
  record(0, 2, 80, {finished(2, 70)}, json::array(), "world.4", false);
  const auto text = report();
  EXPECT_THAT(text, testing::StartsWith("Group world.3 (2 ranks, gloo) failed in all_reduce #2 "));
  EXPECT_THAT(text,
              testing::EndsWith("\nGroup world (2 ranks, gloo) parted at all_reduce #4 'grad' "
                                "(step.cpp:7), without rank 1, 9.5 s later.\n"
                                "Group world.4 (2 ranks, gloo) shows no failure.\n"));
}

TEST_F(FlightReport, FailureOutsideOfACall) {
  record(0, 2, 12, {finished(3, 9)});
  record(1, 2, 11, {finished(3, 9)});
  EXPECT_THAT(
      report(),
      HasSubstr("Group world (2 ranks, gloo) failed outside of a call.\n"
                "The first to report a failure was rank 1 on n1, at 2027-01-15 08:00:11 UTC: "
                "rank 1's cause\n"));
}

TEST_F(FlightReport, FilesThatAreNoRecordsAreNamed) {
  record(0, 2, 71, {failed(7, 10, 70)});
  write("world-rank1.json", R"({"group": "world", "ra)");
  write("other.json", R"({"loss": 1})");
  write("out-of-range.json", R"({"group": "world", "backend": "gloo", "cause": "", "host": "",
        "rank": 2, "size": 2, "now": 1, "statuses": [], "calls": []})");
  const auto text = report();
  EXPECT_THAT(text, HasSubstr("Rank 0 waited in it for 60.0 s.\nRank 1 left no record that can"));
  EXPECT_THAT(text, HasSubstr("\n\nNot used: other.json: no flight record\n"
                              "Not used: out-of-range.json: rank 2 of 2\n"
                              "Not used: world-rank1.json: no flight record\n"));
}

TEST_F(FlightReport, WrongFolders) {
  const auto path = (folder_ / "none").string();
  const std::string expected = ", expected <group>-rank<r>.json of each rank that could write one";
  EXPECT_ERROR(
      flight_report(path), ErrorKind::usage,
      "[comm] no flight records in " + path + "; got No such file or directory" + expected);
  EXPECT_ERROR(
      report(), ErrorKind::usage,
      "[comm] no flight records in " + folder_.path().string() + "; got no JSON file" + expected);
}

TEST_F(FlightReport, RecordsOfTwoRuns) {
  record(0, 2, 71, {failed(7, 10, 70)});
  record(1, 3, 71, {failed(7, 10, 70)});
  EXPECT_ERROR(report(), ErrorKind::usage,
               "[comm] flight records of group world are mixed; got rank 0 of 2 in "
               "world-rank0.json and rank 1 of 3 in world-rank1.json, expected the records of one "
               "run (give every run its own folder)");
}

}  // namespace
}  // namespace troika::comm
