// `troika simulate`, and `troika plan --draw`.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class SimulateCommand : public testing::Test {
 protected:
  testing_support::Outcome troika(const std::string& arguments) {
    return testing_support::run_program("cd " + folder_.path().string() + " && exec " +
                                        TROIKA_PROGRAM + " " + arguments);
  }
  nlohmann::json simulated(const std::string& arguments) {
    const auto outcome = troika("simulate --json out.json " + arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return nlohmann::json::parse(read_file(folder_ / "out.json"));
  }
  std::string refused(const std::string& arguments) {
    const auto outcome = troika(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    return outcome.err;
  }
  const TemporaryFolder folder_;
};

TEST_F(SimulateCommand, WritesWhatItFinds) {
  const auto h1 =
      simulated("--schedule zb-h1 --stages 8 --micro-batches 24 --times 18.522,18.086,9.337,0.601");
  EXPECT_NEAR(h1["bubble_rate"].get<double>(), .1585, 5e-5);
  EXPECT_EQ(h1["peak_activations"], std::vector<int>(8, 8));
  const auto interleaved =
      simulated("--schedule interleaved --stages 4 --micro-batches 8 --times 1,1,1,0 --chunks 4");
  EXPECT_EQ(interleaved["makespan"], 26.25);
  EXPECT_EQ(interleaved["chunks"], 4);
  const auto found = simulated(
      "--schedule auto --stages 8 --micro-batches 24 --times 29.718,29.444,19.927,0.527 "
      "--memory-limit 16 --chunks 1");
  EXPECT_LE(found["bubble_rate"].get<double>(), .0029 + 5e-4);
  EXPECT_LE(found["peak_memory"].get<std::vector<double>>()[0], 16);
  write_file_atomically(folder_ / "own.txt", "# mine\n0F0 0B0 0F1 0B1\n1F0 1B0 1F1 1B1\n");
  const auto own = simulated("--schedule own.txt --times 1,1,0,0 --times 2,1,1,0.5");
  EXPECT_EQ(own["makespan"], 2 * (1 + 2 + 2 + 0.5 + 1));
  EXPECT_EQ(own["peak_activations"], std::vector<int>(2, 1));
  // The command writes a schedule and a trace.
  const auto whole = simulated("--schedule own.txt --actions whole.txt --trace trace.json");
  EXPECT_THAT(read_file(folder_ / "whole.txt"), StartsWith("0F0 0SEND_F0 0RECV_B0 0B0 "));
  EXPECT_EQ(simulated("--schedule whole.txt")["spans"], whole["spans"]);
  const auto trace = nlohmann::json::parse(read_file(folder_ / "trace.json"));
  EXPECT_GE(trace["traceEvents"].size(), 8u);
}

TEST_F(SimulateCommand, RefusesWithTheNumbers) {
  const std::string shape = " --stages 4 --micro-batches 6";
  EXPECT_THAT(refused("simulate --schedule interleaved" + shape),
              HasSubstr("error: [layout] schedule interleaved on 4 ranks; got 6 micro-batches, "
                        "expected a multiple of the ranks\n"));
  EXPECT_THAT(refused("simulate --schedule zb_v" + shape), HasSubstr("did you mean zb-v?"));
  EXPECT_THAT(refused("simulate --schedule gpipe --memory-limit 4" + shape),
              HasSubstr("[simulate] --memory-limit; got 4, expected at least 6, which schedule "
                        "gpipe keeps"));
  EXPECT_THAT(refused("simulate --schedule gpipe --stages 4"),
              HasSubstr("[simulate] --micro-batches; got none"));
  for (const std::string times : {"1,1,1", "-1,1,1,0"}) {
    EXPECT_THAT(refused("simulate --schedule gpipe --times=" + times + shape),
                HasSubstr("[simulate] --times; got " + times + ", expected F,B,W,COMM"));
  }
  EXPECT_THAT(refused("simulate --schedule gpipe --times 1,1,1,0 --times 1,1,1,0" + shape),
              HasSubstr("--times; got 2 of them, expected one for all stages, or 4"));
  write_file_atomically(folder_ / "bad.txt", "0F0\n1F0 1X0\n");
  EXPECT_THAT(refused("simulate --schedule bad.txt"),
              HasSubstr("[layout] line 2 of bad.txt (rank 1); got 1X0, expected STAGE KIND"));
  write_file_atomically(folder_ / "own.txt", "0F0 0B0\n1F0 1B0\n");
  EXPECT_THAT(refused("simulate --schedule own.txt --stages 3"),
              HasSubstr("--stages; got 3, expected 2, as own.txt has"));
}

TEST_F(SimulateCommand, DrawsSchedules) {
  constexpr const char* kPicture =
      "0 |F0 F1    I0 W0 F2 I1 W1 I2 W2\n1 |   F0 I0 F1 I1 W0 F2 I2 W1 W2\n";
  const auto by_name = troika("plan --draw zb-h1 2 3 --svg out.svg");
  EXPECT_EQ(by_name.out,
            std::string("zb-h1, 2 stages, 3 micro-batches: makespan 10, bubble rate 0.1000\n") +
                kPicture);
  EXPECT_THAT(read_file(folder_ / "out.svg"), AllOf(StartsWith("<svg "), HasSubstr("zb-h1, 2 ")));
  write_file_atomically(folder_ / "plan.toml",
                        "[mesh]\naxes = \"pipeline=2 data=2\"\n[schedule]\nname = \"zb-h1\"\n"
                        "micro_batches = 3\n");
  EXPECT_EQ(troika("plan --draw plan.toml").out, by_name.out);
  EXPECT_EQ(troika("plan --plan plan.toml --draw").out, by_name.out);
  EXPECT_THAT(troika("plan --draw").out, HasSubstr("one_stage, 1 stage, 1 micro-batch: "));
  write_file_atomically(folder_ / "own.txt", "0F0 0B0\n1F0 1B0\n");
  EXPECT_THAT(troika("plan --draw own.txt --times 1,1,1,2").out,
              HasSubstr("makespan 10, bubble rate 0.7000\n0 |F0 "));
  EXPECT_THAT(refused("plan --draw zb-h1 two 3"),
              HasSubstr("[plan] stages of --draw; got two, expected a number from 1 to 1000000"));
  EXPECT_THAT(refused("plan --svg out.svg"), HasSubstr("--svg requires --draw"));
}

}  // namespace
}  // namespace troika
