#include "troika/base/file.h"

#include <gmock/gmock.h>

#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace troika {
namespace {

using testing_support::TemporaryFolder;

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

TEST(File, NamesWhatItCannotRead) {
  EXPECT_ERROR(read_file("/no/such/file"), ErrorKind::usage,
               "[base] cannot read /no/such/file; got No such file or directory");
}

}  // namespace
}  // namespace troika
