#include "troika/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>

#include <stdexcept>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

TEST(File, AtomicWriteReplacesAndLeavesNothingElse) {
  const TemporaryFolder folder;
  const auto path = folder / "deep/er/file";
  write_file_atomically(path, "one");
  write_file_atomically(path, "two");
  EXPECT_EQ(read_file(path), "two");
  const auto entries = std::filesystem::directory_iterator(path.parent_path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
}

TEST(File, FailedWriteKeepsTheOldContent) {
  const TemporaryFolder folder;
  const auto path = folder / "target";
  std::filesystem::create_directories(path / "occupied");
  EXPECT_THROW(write_file_atomically(path, "x"), Error);
  const auto entries = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "the temporary file must be gone";
}

TEST(File, ProducerThatThrowsKeepsTheOldContent) {
  const TemporaryFolder folder;
  const auto path = folder / "target";
  write_file_atomically(path, "old");
  EXPECT_THROW(write_file_atomically(path,
                                     [](const File& file) {
                                       file.write("half of the n");
                                       throw std::runtime_error("no more");
                                     }),
               std::runtime_error);
  EXPECT_EQ(read_file(path), "old");
  const auto entries = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 1) << "the temporary file must be gone";
}

TEST(File, ReadsAndWritesAtOffsets) {
  const TemporaryFolder folder;
  const auto path = folder / "target";
  const File file(path, O_RDWR | O_CREAT);
  file.write("abcdef");
  file.write_at(2, "XY");
  file.truncate(5);
  EXPECT_EQ(file.size(), 5);
  std::string part(3, '?');
  file.read_at(1, part);
  EXPECT_EQ(part, "bXY");
  EXPECT_ERROR(
      file.read_at(4, part), ErrorKind::usage,
      "[base] cannot read " + path.string() + "; got its end at byte 5, expected 2 more bytes");
}

TEST(File, NamesWhatItCannotRead) {
  EXPECT_ERROR(read_file("/no/such/file"), ErrorKind::usage,
               "[base] cannot read /no/such/file; got No such file or directory");
}

}  // namespace
}  // namespace troika
