// The files that a run leaves in its folder: metrics.csv and TensorBoard events.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <ctime>
#include <map>

#include "tests/support/errors.h"
#include "troika/base/checksum.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"
#include "troika/observe/loggers/csv.h"
#include "troika/observe/loggers/tensorboard.h"

namespace troika::observe {
namespace {

using testing::ElementsAre;
using testing::MatchesRegex;

// Runs `logging` in a child process that then dies of SIGKILL.
template <typename Function>
void killed_after(Function logging) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    logging();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST(CsvLogger, OneRowPerStepAndOneColumnPerMetric) {
  const TemporaryFolder folder;
  const auto path = folder / "run/metrics.csv";
  CsvLogger logger(path);
  EXPECT_EQ(read_file(path), "step\n");
  logger.log(1, {{"train/loss", 2.5}, {"lr", 1e-3}});
  EXPECT_EQ(read_file(path), "step,train/loss,lr\n1,2.5,0.001\n");
  logger.log(2, {{"lr", 0.1}});
  EXPECT_EQ(read_file(path), "step,train/loss,lr\n1,2.5,0.001\n2,,0.1\n");
  logger.log(2, {{"validation/loss", NAN}});
  logger.log(3, {{"validation/loss", -NAN}, {"lr", INFINITY}});
  EXPECT_EQ(read_file(path),
            "step,train/loss,lr,validation/loss\n1,2.5,0.001,\n2,,0.1,nan\n3,,inf,nan\n");
  logger.log(3, {{"lr", 1}});
  EXPECT_EQ(read_file(path),
            "step,train/loss,lr,validation/loss\n1,2.5,0.001,\n2,,0.1,nan\n3,,1,nan\n")
      << "the row is shorter than it was";
  logger.log(3, {{"train/loss", 1.0 / 3}});
  logger.flush();
  EXPECT_EQ(read_file(path),
            "step,train/loss,lr,validation/loss\n1,2.5,0.001,\n2,,0.1,nan\n"
            "3,0.3333333333333333,1,nan\n");
}

TEST(CsvLogger, NewColumnInTheFirstCallOfAStep) {
  const TemporaryFolder folder;
  CsvLogger logger(folder / "m.csv");
  logger.log(1, {{"a", 1}});
  logger.log(2, {{"b", 2}});
  logger.log(2, {{"c", 3}});
  logger.log(3, {});
  EXPECT_EQ(read_file(folder / "m.csv"), "step,a,b,c\n1,1,,\n2,,2,3\n3,,,\n");
}

TEST(CsvLogger, KilledRunKeepsItsRows) {
  const TemporaryFolder folder;
  const auto path = folder / "m.csv";
  killed_after([&] {
    auto* logger = new CsvLogger(path);
    logger->log(1, {{"a", 1}});
    logger->log(2, {{"b", 2}});
    logger->log(3, {{"a", 3}});
  });
  EXPECT_EQ(read_file(path), "step,a,b\n1,1,\n2,,2\n3,3,\n");
}

// If a file is replaced, a reader that has it open keeps the old one. Rows that get more values do
// not replace the file, because this would take time proportional to all earlier rows.
TEST(CsvLogger, RowsThatGetMoreValuesAreWrittenInPlace) {
  const TemporaryFolder folder;
  const auto path = folder / "m.csv";
  CsvLogger logger(path);
  logger.log(0, {{"a", 1}, {"b", 1}, {"c", 1}});
  std::filesystem::create_hard_link(path, folder / "seen");
  std::string expected = "step,a,b,c\n0,1,1,1\n";
  for (int64_t step = 1; step < 20; ++step) {
    logger.log(step, {{"b", 0.5}});
    logger.log(step, {{"a", 0.25}});
    logger.log(step, {{"c", static_cast<double>(step)}, {"a", 0.125}});
    expected += fmt::format("{},0.125,0.5,{}\n", step, step);
    EXPECT_EQ(read_file(path), expected);
  }
  EXPECT_EQ(read_file(folder / "seen"), expected);
}

// The run is killed while it writes a row; a part of the row is in the file.
TEST(CsvLogger, ARowThatIsCutWhileItGetsMoreValuesIsCompleted) {
  const TemporaryFolder folder;
  const auto path = folder / "m.csv";
  const std::string before = "step,a,b\n1,1,2\n";
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto* logger = new CsvLogger(path);
    logger->log(1, {{"a", 1}, {"b", 2}});
    logger->log(2, {{"a", 1}});
    const auto most = before.size() + std::string("2,1,0.12").size();
    const rlimit limit{most, most};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    logger->log(2, {{"b", 0.123456789}});
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
  EXPECT_EQ(read_file(path), before + "2,1,0.12");
  CsvLogger logger(path, LogPosition{.step = 2, .rows = 1});
  EXPECT_EQ(read_file(path), before + "2,1,0.123456789\n");
  // Resumes before that row, so the data that would complete it are not needed.
  CsvLogger earlier(path, LogPosition{.step = 1, .rows = 1});
  earlier.log(3, {{"a", 7}});
  earlier.log(3, {{"b", 8}});
  earlier.log(4, {{"a", 9}});
  const CsvLogger again(path, LogPosition{.step = 4, .rows = 1});
  EXPECT_EQ(read_file(path), before + "3,7,8\n4,9,\n");
}

TEST(CsvLogger, StartsAnew) {
  const TemporaryFolder folder;
  const auto path = folder / "m.csv";
  write_file_atomically(path, "step,a,b\n1,1,\n");
  const CsvLogger logger(path);
  EXPECT_EQ(read_file(path), "step\n");
}

TEST(CsvLogger, RefusesNamesThatCannotHeadAColumn) {
  const TemporaryFolder folder;
  const auto path = folder / "m.csv";
  const std::string file = path.string();
  CsvLogger logger(path);
  for (const std::string name : {"", "step", "a,b", "a\"b", "a\nb"}) {
    EXPECT_ERROR(logger.log(1, {{"fine", 1}, {name, 1}}), ErrorKind::usage,
                 "[observe] a metric cannot be a column of " + file + "; got name `" + name +
                     "`, expected a name other than `step` without comma, quote or control "
                     "character");
  }
  EXPECT_EQ(read_file(path), "step\n");
}

// An independent reader: the records of a TFRecord file, with checksums computed bit by bit.
uint32_t slow_masked_crc(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const unsigned char byte : bytes) {
    crc ^= byte;
    for (int i = 0; i < 8; ++i) crc = crc & 1 ? (crc >> 1) ^ 0x82f63b78 : crc >> 1;
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

template <typename Number>
Number number_at(const std::string& bytes, size_t offset) {
  Number value;
  std::memcpy(&value, bytes.substr(offset).data(), sizeof value);
  return value;
}

std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    const auto length = number_at<uint64_t>(file, at);
    EXPECT_EQ(number_at<uint32_t>(file, at + 8), slow_masked_crc(file.substr(at, 8)));
    records.push_back(file.substr(at + 12, length));
    EXPECT_EQ(number_at<uint32_t>(file, at + 12 + length), slow_masked_crc(records.back()));
    at += 16 + length;
  }
  return records;
}

// Returns the fields of a protobuf message by number: raw bytes of fixed and length-delimited
// fields, and decimal texts of varints.
std::multimap<uint64_t, std::string> fields_of(const std::string& message) {
  std::multimap<uint64_t, std::string> fields;
  size_t at = 0;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(message.at(at++));
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  };
  while (at < message.size()) {
    const uint64_t key = varint();
    size_t size = 0;
    if ((key & 7) == 0) {
      fields.emplace(key >> 3, std::to_string(static_cast<int64_t>(varint())));
      continue;
    }
    size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : varint();
    fields.emplace(key >> 3, message.substr(at, size));
    at += size;
  }
  return fields;
}

std::string only(const std::multimap<uint64_t, std::string>& fields, uint64_t number) {
  EXPECT_EQ(fields.count(number), 1u);
  return fields.find(number)->second;
}

TEST(TensorBoardLogger, WritesEventsAnotherReaderUnderstands) {
  const TemporaryFolder folder;
  const double before = static_cast<double>(std::time(nullptr));
  TensorBoardLogger logger(folder / "run");
  EXPECT_THAT(logger.path().filename().string(),
              MatchesRegex("events\\.out\\.tfevents\\.[0-9]+\\..+"));
  logger.log(7, {{"train/loss", 0.1}, {std::string(300, 'x'), NAN}});
  logger.log(-1, {{"a", INFINITY}});
  logger.log(int64_t{1} << 40, {});
  logger.flush();

  const auto records = records_of(read_file(logger.path()));
  ASSERT_EQ(records.size(), 4u);
  for (const std::string& record : records) {
    const double time = number_at<double>(only(fields_of(record), 1), 0);
    EXPECT_GE(time, before);
    EXPECT_LE(time, before + 3600);
  }
  EXPECT_EQ(only(fields_of(records[0]), 3), "brain.Event:2");
  const auto first = fields_of(records[1]);
  EXPECT_EQ(only(first, 2), "7");
  const auto summary = fields_of(only(first, 5));
  ASSERT_EQ(summary.count(1), 2u);
  const auto value = fields_of(summary.begin()->second);
  EXPECT_EQ(only(value, 1), "train/loss");
  EXPECT_EQ(number_at<float>(only(value, 2), 0), 0.1f);
  const auto long_value = fields_of(std::next(summary.begin())->second);
  EXPECT_EQ(only(long_value, 1), std::string(300, 'x'));
  EXPECT_TRUE(std::isnan(number_at<float>(only(long_value, 2), 0)));
  EXPECT_EQ(only(fields_of(records[2]), 2), "-1");
  EXPECT_EQ(only(fields_of(records[3]), 2), "1099511627776");
}

TEST(TensorBoardLogger, KilledRunKeepsItsEventsAndTheNextAddsAFile) {
  const TemporaryFolder folder;
  killed_after([&] {
    auto* logger = new TensorBoardLogger(folder.path());
    logger->log(1, {{"a", 1}});
  });
  const TensorBoardLogger second(folder.path()), third(folder.path());
  std::map<std::string, size_t> records;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    records[entry.path()] = records_of(read_file(entry.path())).size();
  }
  std::vector<size_t> counts;
  for (const auto& [path, count] : records) counts.push_back(count);
  EXPECT_THAT(counts, ElementsAre(2, 1, 1)) << "in the order of names, which TensorBoard reads";
}

TEST(TensorBoardLogger, AFileOfAResumedRunSaysFromWhereOnRowsAreDropped) {
  const TemporaryFolder folder;
  for (const auto& [rows, dropped] : {std::pair(0, "5"), {2, "6"}}) {
    const TensorBoardLogger logger(folder.path(), LogPosition{.step = 5, .rows = rows});
    const auto records = records_of(read_file(logger.path()));
    ASSERT_EQ(records.size(), 2u);
    const auto session = fields_of(records[1]);
    EXPECT_EQ(only(session, 2), dropped);
    EXPECT_EQ(only(fields_of(only(session, 7)), 1), "1") << "START";
  }
}

}  // namespace
}  // namespace troika::observe
