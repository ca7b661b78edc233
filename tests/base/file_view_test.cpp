#include "troika/base/file_view.h"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <utility>

#include "tests/support/errors.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika {
namespace {

TEST(FileView, ShowsAFileAsItWas) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "a", "first");
  write_file_atomically(folder / "empty", "");
  FileView first(folder / "a");
  const FileView view(std::move(first));
  write_file_atomically(folder / "a", "replaced");
  EXPECT_EQ(view.content(), "first");
  EXPECT_EQ(FileView(folder / "empty").content(), "");
}

TEST(FileView, NamesThePathAndTheReason) {
  const TemporaryFolder folder;
  EXPECT_ERROR(
      FileView(folder / "none"), ErrorKind::usage,
      "[base] cannot read " + (folder / "none").string() + "; got No such file or directory");
  EXPECT_ERROR(FileView(folder.path()), ErrorKind::usage,
               "[base] cannot read " + folder.path().string() + "; got Is a directory");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_ERROR(FileView(folder / "pipe"), ErrorKind::usage,
               "[base] cannot read " + (folder / "pipe").string() +
                   "; got a pipe or a device, expected a regular file");
}

}  // namespace
}  // namespace troika
