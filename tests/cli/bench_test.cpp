// `troika bench collectives`: every variant is measured, the numbers fit together, and wrong input
// is refused before anything is started.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/support/subprocess.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/base/text.h"

namespace troika {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::UnorderedElementsAreArray;
using testing_support::Outcome;
using testing_support::run_program;

std::string text(const json& value) {
  return value.get<std::string>();
}

json details_of(const json& record) {
  EXPECT_EQ(record["benchmark"], "collectives");
  EXPECT_GT(record["machine"]["cores"], 0);
  EXPECT_FALSE(text(record["machine"]["cpu"]).empty());
  EXPECT_FALSE(text(record["versions"]["troika"]).empty());
  EXPECT_FALSE(text(record["versions"]["libtorch"]).empty());
  json details = json::array();
  for (const json& row : record["rows"]) {
    EXPECT_EQ(row["median"], row["details"]["p50_microseconds"]);
    EXPECT_LE(row["low"], row["median"]);
    EXPECT_GE(row["high"], row["median"]);
    EXPECT_EQ(row["samples"], row["details"]["iterations"]);
    details.push_back(row["details"]);
  }
  return details;
}

class Bench : public testing::Test {
 protected:
  Outcome bench(const std::string& arguments) const {
    return run_program("exec " TROIKA_PROGRAM " bench collectives " + arguments);
  }
  // Returns the details of the rows of a short run, which must succeed.
  json measure(const std::string& arguments) {
    const auto file = folder_ / "rows.json";
    outcome_ = bench("--min-time 0.01 --json " + file.string() + " " + arguments);
    EXPECT_EQ(outcome_.exit_code, 0) << outcome_.err;
    EXPECT_EQ(outcome_.orphans, 0);
    return outcome_.exit_code == 0 ? details_of(json::parse(read_file(file))) : json::array();
  }

  const TemporaryFolder folder_;
  Outcome outcome_;
};

void expect_consistent(const json& row, double bus_factor) {
  SCOPED_TRACE(row.dump());
  EXPECT_GE(row["iterations"], 10);
  EXPECT_GT(row["min_microseconds"], 0);
  EXPECT_GE(row["p50_microseconds"], row["min_microseconds"]);
  EXPECT_GE(row["p99_microseconds"], row["p50_microseconds"]);
  const double rate =
      row["bytes"].get<double>() / (row["p50_microseconds"].get<double>() * 1e-6) * 1e-9;
  EXPECT_NEAR(row["algorithm_bandwidth"].get<double>(), rate, 1e-6 * rate);
  EXPECT_NEAR(row["bus_bandwidth"].get<double>(), bus_factor * rate, 1e-6 * rate);
}

TEST_F(Bench, MeasuresEveryVariant) {
  const json rows =
      measure("--backends shm,gloo --ranks 2 --sizes 4K,1M --against gloo --zero-copy-limit");
  std::vector<std::string> found, wanted;
  for (const json& row : rows) {
    found.push_back(text(row["backend"]) + " " + text(row["algorithm"]) + " " +
                    text(row["buffers"]) + " " + row["bytes"].dump());
    EXPECT_EQ(row["operation"], "all_reduce");
    EXPECT_EQ(row["dtype"], "float32");
    EXPECT_EQ(row["ranks"], 2);
    expect_consistent(row, 1);
  }
  for (const char* bytes : {"4096", "1048576"}) {
    for (const char* variant :
         {"shm auto shared ", "shm auto ordinary ", "gloo auto shared ", "gloo auto ordinary ",
          "gloo (c10d) - ordinary ", "limit - shared "}) {
      wanted.push_back(std::string(variant) + bytes);
    }
  }
  EXPECT_THAT(found, UnorderedElementsAreArray(wanted));

  const auto lines = split(outcome_.out, '\n');
  ASSERT_EQ(lines.size(), 1 + wanted.size() + 2 + 2 + 1) << outcome_.out;
  for (size_t i = 1; i <= wanted.size(); ++i) EXPECT_EQ(lines[i].size(), lines[0].size());
  const auto ratio_line = [&](size_t i) { return lines[wanted.size() + 3 + i]; };
  EXPECT_THAT(ratio_line(0),
              testing::MatchesRegex("2 ranks, 4.0 KiB: shm .auto, shared.: .* x gloo .c10d., .* x "
                                    "limit; shm .auto, ordinary.: .* x gloo .c10d., .* x limit"));
  EXPECT_THAT(ratio_line(1), HasSubstr("2 ranks, 1.0 MiB: "));
}

// Twenty sizes take seconds; the first row ends the measurement.
TEST_F(Bench, PrintsEachRowOnceItIsMeasured) {
  const auto outcome = run_program(
      "cd " + folder_.path().string() +
      " && mkfifo rows && { " TROIKA_PROGRAM
      " bench collectives --backends shm --buffers shared --ranks 2 --min-time 0.3 --sizes "
      "1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K,1K > rows & } && "
      "{ read -r titles; read -r row; kill -TERM $!; cat > rest; } < rows; wait $!; "
      "echo \"$row\"; wc -l < rest");
  EXPECT_EQ(outcome.orphans, 0);
  const auto lines = split(outcome.out, '\n');
  ASSERT_EQ(lines.size(), 3u) << outcome.out;
  EXPECT_THAT(lines[0], testing::StartsWith("all_reduce "));
  EXPECT_LT(parse_int(lines[1]).value_or(19), 19) << "all rows came at the end";
}

TEST_F(Bench, MeasuresSeveralAlgorithmsAndNumbersOfRanks) {
  const json rows = measure(
      "--backends gloo --algorithms ring,auto --ranks 1,2 --sizes 64 --dtype bfloat16 "
      "--buffers ordinary");
  ASSERT_EQ(rows.size(), 4u);
  const auto line = [&](size_t i) {
    return text(rows[i]["algorithm"]) + " " + rows[i]["ranks"].dump();
  };
  EXPECT_EQ(line(0), "ring 1");
  EXPECT_EQ(line(1), "auto 1");
  EXPECT_EQ(line(2), "ring 2");
  EXPECT_EQ(line(3), "auto 2");
  EXPECT_EQ(rows[0]["dtype"], "bfloat16");
  EXPECT_EQ(rows[0]["bus_bandwidth"], 0);  // nothing needs to pass a link
}

// 1000 bytes of 250 elements make 3 blocks of 83.
TEST_F(Bench, MeasuresOtherOperations) {
  const std::tuple<const char*, int, double> cases[] = {
      {"reduce_scatter", 996, 2.0 / 3}, {"all_gather", 996, 2.0 / 3}, {"broadcast", 1000, 1}};
  for (const auto& [operation, bytes, factor] : cases) {
    SCOPED_TRACE(operation);
    const json rows =
        measure(std::string("--backends shm --ranks 3 --sizes 1000 --operation ") + operation);
    ASSERT_EQ(rows.size(), 2u);
    for (const json& row : rows) {
      EXPECT_EQ(row["operation"], operation);
      EXPECT_EQ(row["bytes"], bytes);
      expect_consistent(row, factor);
    }
    // If nothing is compared, only the table is printed.
    EXPECT_EQ(split(outcome_.out, '\n').size(), 1 + 2 + 1u) << outcome_.out;
  }
}

#ifdef TROIKA_WITH_MPI
TEST_F(Bench, MeasuresUnderMpirun) {
  const json rows = measure(
      "--backends shm,mpi --buffers ordinary --ranks 3 --sizes 64K --against mpi,gloo "
      "--zero-copy-limit");
  ASSERT_EQ(rows.size(), 5u);
  EXPECT_EQ(rows[0]["backend"], "shm");
  EXPECT_EQ(rows[1]["backend"], "mpi");
  EXPECT_EQ(rows[2]["backend"], "mpi (MPI_Allreduce)");
  EXPECT_FALSE(text(rows[2]["library"]).empty());
  EXPECT_EQ(rows[3]["backend"], "gloo (c10d)");
  EXPECT_EQ(rows[4]["backend"], "limit");
  for (const json& row : rows) expect_consistent(row, 4.0 / 3);
}

// Here only the peer initialises and finalises MPI.
TEST_F(Bench, MeasuresMpiAsAPeerAlone) {
  const json rows =
      measure("--backends gloo --buffers ordinary --ranks 2 --sizes 4K --against mpi");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1]["backend"], "mpi (MPI_Allreduce)");
}
#endif

TEST_F(Bench, RefusesWrongInput) {
  const std::pair<const char*, const char*> rows[] = {
      {"--operation all_reduc",
       "[bench] unknown operation; got all_reduc (did you mean all_reduce?)"},
      {"--backends shm,glo", "[comm] unknown back end; got glo (did you mean gloo?)"},
      {"--dtype float23", "[bench] unknown dtype; got float23 (did you mean float32?)"},
      {"--buffers shard", "[bench] unknown kind of buffers; got shard (did you mean shared?)"},
      {"--against glow", "[bench] unknown peer; got glow (did you mean gloo?)"},
      {"--ranks 2,0", "[bench] number of ranks; got 0, expected an integer from 1 to 4096"},
      {"--ranks two", "[bench] number of ranks; got two, expected an integer from 1 to 4096"},
      {"--sizes 4K,4X",
       "[bench] size; got 4X, expected a number of bytes from 1 to 4G (4K, 1M and 2G are multiples "
       "of 1024)"},
      {"--sizes 5G",
       "[bench] size; got 5G, expected a number of bytes from 1 to 4G (4K, 1M and 2G are multiples "
       "of 1024)"},
      {"--sizes 8 --ranks 3 --operation all_gather",
       "[bench] size is too small for all_gather of float32 on 3 ranks; got 8 bytes, expected one "
       "element at least"},
      {"--min-time 0", "[bench] --min-time; got 0, expected a number of seconds > 0 and <= 3600"},
      {"--against gloo --dtype float64",
       "[bench] --against and --zero-copy-limit do not go with these calls; got all_reduce of "
       "float64, expected all_reduce of float32"},
      {"--zero-copy-limit --operation broadcast",
       "[bench] --against and --zero-copy-limit do not go with these calls; got broadcast of "
       "float32, expected all_reduce of float32"},
      {"--algorithms ring --operation broadcast",
       "[bench] --algorithms do not go with this operation; got broadcast, expected all_reduce, "
       "which alone has several"},
  };
  for (const auto& [arguments, message] : rows) {
    SCOPED_TRACE(arguments);
    const auto outcome = bench(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.err, std::string("error: ") + message + "\n");
    EXPECT_EQ(outcome.out, "");
  }
  const auto algorithm = bench("--algorithms rong");
  EXPECT_EQ(algorithm.exit_code, 2);
  EXPECT_THAT(algorithm.err, HasSubstr("did you mean ring?"));
}

TEST_F(Bench, RefusesToRunUnderALauncher) {
  const auto outcome = run_program("exec " TROIKA_PROGRAM " launch -n 2 " TROIKA_PROGRAM
                                   " bench collectives --sizes 4K");
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("[bench] troika bench starts its ranks itself; got rank "));
}

}  // namespace
}  // namespace troika
