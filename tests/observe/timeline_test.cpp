// How much of the communication in a trace is hidden behind computation.
#include "troika/observe/report/timeline.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "troika/base/config.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/observe/report/page.h"

namespace troika::observe::report {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Step 1 has a sum of 20 µs whose first 15 µs are beside weight gradients, one of 10 µs on the
// thread of the backward pass, and one of a forward pass of 10 µs, 5 µs of which are beside the
// other micro-batch.
TEST(Timeline, CountsHiddenSumsOfATensorAxis) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "config.toml", "");
  write_file_atomically(folder / "metrics.csv", "step,a\n1,2\n");
  write_file_atomically(folder / "trace.json",
                        R"({"otherData": {"clock_error_microseconds": [0]}, "traceEvents": [
{"ph":"X","name":"backward","pid":0,"tid":1,"ts":0,"dur":90,"args":{"step":0}},
{"ph":"X","name":"gradient sum","pid":0,"tid":2,"ts":0,"dur":70,"args":{"step":0}},
{"ph":"X","name":"step","pid":0,"tid":1,"ts":900,"dur":300,"args":{"step":1}},
{"ph":"X","name":"beside a sum","pid":0,"tid":1,"ts":905,"dur":15,"args":{"step":1}},
{"ph":"X","name":"forward sum","pid":0,"tid":2,"ts":900,"dur":10,"args":{"step":1}},
{"ph":"X","name":"backward","pid":0,"tid":1,"ts":1000,"dur":100,"args":{"step":1}},
{"ph":"X","name":"gradient sum","pid":0,"tid":2,"ts":1010,"dur":20,"args":{"step":1}},
{"ph":"X","name":"weight gradients","pid":0,"tid":1,"ts":1010,"dur":15,"args":{"step":1}},
{"ph":"X","name":"gradient sum","pid":0,"tid":1,"ts":1050,"dur":10,"args":{"step":1}},
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0"}},
{"ph":"M","name":"thread_name","pid":0,"tid":1,"args":{"name":"compute"}},
{"ph":"M","name":"thread_name","pid":0,"tid":2,"args":{"name":"tensor axis"}}]})");
  const auto trace = read_trace(folder / "trace.json");
  const auto sums = tensor_overlap(trace.ranks[0]);
  EXPECT_NEAR(sums.communication, 0.040, 1e-12) << "without the first step";
  EXPECT_NEAR(sums.hidden, 0.020, 1e-12);
  EXPECT_EQ(bucket_overlap(trace.ranks[0]).communication, 0);
  const auto html = read_file(write_report(
      folder.path(), [](const std::string&) { return std::vector<config::Setting>(); }));
  EXPECT_THAT(html, AllOf(HasSubstr("50.0 % of the time of the traced sums over the tensor axis"),
                          ContainsRegex(">0.04</td>.*>0.02</td>.*>50.0 %</td>"),
                          Not(HasSubstr("gradient buckets"))));
}

}  // namespace
}  // namespace troika::observe::report
