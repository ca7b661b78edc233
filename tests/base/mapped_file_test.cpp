#include "troika/base/mapped_file.h"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "tests/support/errors.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

constexpr size_t kPage = 4096;

TEST(MappedFile, KeepsWhatLeavesTheMemory) {
  const TemporaryFolder folder;
  const MappedFile file(folder.path(), 8 * kPage);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "it has no name";
  EXPECT_EQ(std::count(file.data(), file.data() + file.size(), '\0'), 8 * kPage);
  std::fill(file.data(), file.data() + file.size(), 'x');
  file.release(file.data() + 1, 4 * kPage);
  file.prefetch(file.data() + 1, 4 * kPage);
  EXPECT_EQ(std::count(file.data(), file.data() + file.size(), 'x'), 8 * kPage);
}

TEST(MappedFile, NamesTheFolderAndTheReason) {
  const TemporaryFolder folder;
  EXPECT_ERROR(MappedFile(folder / "none", 1), ErrorKind::usage,
               "[base] cannot keep 1 bytes in a file in " + (folder / "none").string() +
                   "; got No such file or directory");
  EXPECT_THROW(MappedFile(folder.path(), size_t{1} << 60), Error) << "no disk holds that";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace troika
