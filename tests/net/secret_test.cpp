#include "troika/net/secret.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/errors.h"
#include "troika/base/error.h"
#include "troika/base/file.h"
#include "troika/base/temporary_folder.h"

namespace troika::net {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kHex(64, 'a');

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Secret, IsRandomAndSurvivesHexadecimalDigits) {
  const auto secret = Secret::random();
  EXPECT_FALSE(secret == Secret::random());
  EXPECT_EQ(secret.to_hex().size(), 64u);
  EXPECT_TRUE(Secret::parse(secret.to_hex() + "\n", "test") == secret);
}

TEST(Secret, WhatIsNoneIsRefusedUnseen) {
  for (const std::string& text : {std::string(), kHex.substr(1), kHex + "a", kHex.substr(1) + "g",
                                  "0x" + kHex.substr(2), kHex + "\n" + kHex}) {
    const auto error = error_of([&] { Secret::parse(text, "VARIABLE"); });
    EXPECT_THAT(error, HasSubstr("[net] VARIABLE holds no secret; got ")) << text;
    EXPECT_THAT(error, Not(HasSubstr("aaaa")));
  }
}

TEST(Secret, DerivedOnesDependOnAll) {
  const auto secret = Secret::parse(kHex, "test");
  const auto derived = secret.derive("ab", "c");
  EXPECT_TRUE(derived == secret.derive("ab", "c"));
  EXPECT_FALSE(derived == secret);
  EXPECT_FALSE(derived == secret.derive("a", "bc"));
  EXPECT_FALSE(derived == Secret::parse(std::string(64, 'b'), "test").derive("ab", "c"));
}

TEST(SecretFile, OnlyOfThisUserForNobodyElse) {
  const TemporaryFolder folder;
  const auto path = folder / "secret";
  write_file_atomically(path, kHex + "\n");
  for (const mode_t mode : {0640u, 0604u, 0660u, 0644u}) {
    ::chmod(path.c_str(), mode);
    EXPECT_ERROR(read_secret_file(path), ErrorKind::usage,
                 fmt::format("[net] secret file {0} is not safe; got mode {1:04o}, expected mode "
                             "0600 (chmod 600 {0})",
                             path.string(), mode));
  }
  ::chmod(path.c_str(), 0600);
  EXPECT_TRUE(read_secret_file(path) == Secret::parse(kHex, "test"));
  ::chmod(path.c_str(), 0400);
  EXPECT_TRUE(read_secret_file(path) == Secret::parse(kHex, "test"));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 65534, 65534), 0);
    EXPECT_THAT(error_of([&] { read_secret_file(path); }),
                HasSubstr("got owner 65534, expected 0 (this user) or root"));
  }
  EXPECT_THAT(error_of([&] { read_secret_file(folder / "none"); }),
              AllOf(HasSubstr((folder / "none").string()), HasSubstr("no such file")));
  EXPECT_THAT(error_of([&] { read_secret_file(folder.path()); }), HasSubstr("no regular file"));
  write_file_atomically(folder / "bad", "not hexadecimal");
  ::chmod((folder / "bad").c_str(), 0600);
  EXPECT_THAT(error_of([&] { read_secret_file(folder / "bad"); }),
              AllOf(HasSubstr("holds no secret"), Not(HasSubstr("not hexadecimal"))));
}

TEST(UserSecret, AllWhoComeFirstGetTheSameOne) {
  const TemporaryFolder folder;
  const auto own = folder / "deep" / "troika";
  std::vector<std::optional<Secret>> found(16);
  std::vector<std::thread> threads;
  for (auto& secret : found) threads.emplace_back([&] { secret = user_secret(own); });
  for (auto& thread : threads) thread.join();
  for (const auto& secret : found) EXPECT_TRUE(*secret == *found[0]);
  EXPECT_TRUE(user_secret(own) == *found[0]);
  EXPECT_EQ(mode_of(own), 0700u);
  EXPECT_EQ(mode_of(own / "run-key"), 0600u);
  const std::filesystem::directory_iterator files(own);
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "no drafts are left";
}

TEST(UserSecret, FoldersAndFilesThatOthersMayUseAreRefusedByName) {
  const TemporaryFolder folder;
  const auto own = folder / "troika";
  user_secret(own);
  ::chmod(own.c_str(), 0755);
  EXPECT_ERROR(user_secret(own), ErrorKind::usage,
               fmt::format("[net] folder {0} is not safe; got mode 0755, expected mode 0700 (chmod "
                           "700 {0})",
                           own.string()));
  ::chmod(own.c_str(), 0700);
  ::chmod((own / "run-key").c_str(), 0620);
  EXPECT_THAT(error_of([&] { user_secret(own); }),
              AllOf(HasSubstr((own / "run-key").string()), HasSubstr("got mode 0620")));
  ::chmod((own / "run-key").c_str(), 0600);
  std::filesystem::rename(own / "run-key", folder / "elsewhere");
  std::filesystem::create_symlink(folder / "elsewhere", own / "run-key");
  EXPECT_THAT(error_of([&] { user_secret(own); }), HasSubstr("cannot read " + own.string()));
  std::filesystem::create_directory_symlink(own, folder / "link");
  EXPECT_THAT(error_of([&] { user_secret(folder / "link"); }), HasSubstr("got no folder"));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(own.c_str(), 65534, 65534), 0);
    EXPECT_THAT(error_of([&] { user_secret(own); }), HasSubstr("got owner 65534"));
  }
  EXPECT_THAT(error_of([&] { user_secret("/proc/troika"); }),
              AllOf(HasSubstr("[net] cannot make /proc/troika; got "),
                    HasSubstr("TROIKA_RUN_SECRET_FILE")));
}

}  // namespace
}  // namespace troika::net
