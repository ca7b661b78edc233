#include "troika/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

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
  std::filesystem::resize_file(path, 5);
  EXPECT_EQ(file.size(), 5);
  std::string part(3, '?');
  file.read_at(1, part);
  EXPECT_EQ(part, "bXY");
  EXPECT_ERROR(
      file.read_at(4, part), ErrorKind::usage,
      "[base] cannot read " + path.string() + "; got its end at byte 5, expected 2 more bytes");
}

// A folder that every user can write into, with a file elsewhere that must stay as it is.
class SharedFolder : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::permissions(folder_.path(), std::filesystem::perms::all);
    write_file_atomically(victim_, "precious");
  }
  void TearDown() override { EXPECT_EQ(read_file(victim_), "precious"); }

  void expect_refusal(const std::string& name, const std::string& got) const {
    for (const int flags : {O_WRONLY | O_CREAT | O_TRUNC, O_WRONLY | O_CREAT | O_APPEND, O_RDWR}) {
      EXPECT_ERROR(File(folder_ / name, flags), ErrorKind::usage,
                   "[base] cannot write " + (folder_ / name).string() +
                       " where other users can write; got " + got +
                       ", expected no file, or a regular file of this user (remove it, or choose a "
                       "folder that only you can write into)");
    }
  }

  const TemporaryFolder folder_, home_;
  const std::filesystem::path victim_ = home_ / "victim";
};

TEST_F(SharedFolder, LinksAreRefused) {
  std::filesystem::create_symlink(victim_, folder_ / "link");
  std::filesystem::create_symlink(home_ / "new", folder_ / "dangling");
  std::filesystem::create_hard_link(victim_, folder_ / "second name");
  expect_refusal("link", "a symbolic link");
  expect_refusal("dangling", "a symbolic link");
  expect_refusal("second name", "a file with 2 names");
  EXPECT_FALSE(std::filesystem::exists(home_ / "new"));
}

TEST_F(SharedFolder, PipesAreRefusedAtOnce) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0666), 0);
  const File reader(folder_ / "pipe", O_RDONLY | O_NONBLOCK);
  expect_refusal("pipe", "no regular file");
}

TEST_F(SharedFolder, FilesOfOthersAreRefused) {
  File(folder_ / "planted", O_WRONLY | O_CREAT).write("theirs");
  // Only root can change the owner of a file, so other users skip this part.
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown((folder_ / "planted").c_str(), 65534, 65534), 0);
  expect_refusal("planted", "a file of user 65534");
  EXPECT_EQ(read_file(folder_ / "planted"), "theirs");
}

TEST_F(SharedFolder, FilesOfThisUserAreWritten) {
  File(folder_ / "own", O_WRONLY | O_CREAT | O_TRUNC).write("one");
  File(folder_ / "own", O_WRONLY | O_CREAT | O_APPEND).write(" two");
  EXPECT_EQ(read_file(folder_ / "own"), "one two");
  File(folder_ / "own", O_WRONLY | O_CREAT | O_TRUNC).write("three");
  EXPECT_EQ(read_file(folder_ / "own"), "three");
  EXPECT_THROW(File(folder_ / "own", O_WRONLY | O_CREAT | O_EXCL), Error);
}

TEST_F(SharedFolder, AtomicWriteReplacesALink) {
  const auto path = folder_ / "target";
  std::filesystem::create_symlink(victim_, path);
  // A temporary file with a name that another program could guess.
  std::filesystem::create_symlink(victim_, path.string() + ".tmp-" + std::to_string(::getpid()));
  write_file_atomically(path, "mine");
  EXPECT_EQ(read_file(path), "mine");
  EXPECT_FALSE(std::filesystem::is_symlink(path));
}

TEST(File, FollowsLinksInAFolderOfThisUserAlone) {
  const TemporaryFolder folder;
  std::filesystem::create_symlink(folder / "log", folder / "latest");
  File(folder / "latest", O_WRONLY | O_CREAT).write("x");
  EXPECT_EQ(read_file(folder / "log"), "x");
}

std::filesystem::perms mode_of(const std::filesystem::path& path) {
  return std::filesystem::status(path).permissions();
}

TEST(File, OwnFoldersAreClosedWhereOthersCanWrite) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(022);
  make_own_folder(folder / "deep/records");
  EXPECT_EQ(mode_of(folder / "deep/records"), std::filesystem::perms(0755));
  std::filesystem::permissions(folder / "deep", std::filesystem::perms::all);
  make_own_folder(folder / "deep/closed");
  EXPECT_EQ(mode_of(folder / "deep/closed"), std::filesystem::perms(0700));
  make_own_folder(folder / "deep/closed");
  ::umask(before);
  std::filesystem::create_directory_symlink(folder / "deep/records", folder / "deep/link");
  const std::string expected =
      "a folder of this user, because others can write to the folder around it";
  EXPECT_ERROR(make_own_folder(folder / "deep/link"), ErrorKind::usage,
               "[base] cannot use " + (folder / "deep/link").string() +
                   "; got a link or another user's folder, expected " + expected);
  if (::geteuid() != 0) return;
  std::filesystem::create_directory(folder / "deep/theirs");
  ASSERT_EQ(::chown((folder / "deep/theirs").c_str(), 12345, 12345), 0);
  EXPECT_ERROR(make_own_folder(folder / "deep/theirs"), ErrorKind::usage,
               "[base] cannot use " + (folder / "deep/theirs").string() +
                   "; got a link or another user's folder, expected " + expected);
}

TEST(File, NamesWhatItCannotRead) {
  EXPECT_ERROR(read_file("/no/such/file"), ErrorKind::usage,
               "[base] cannot read /no/such/file; got No such file or directory");
  EXPECT_ERROR(read_file("/tmp"), ErrorKind::usage, "[base] cannot read /tmp; got Is a directory");
}

}  // namespace
}  // namespace troika
