#include "troika/net/secret.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sodium.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "troika/base/error.h"
#include "troika/net/descriptor.h"

namespace troika::net {

namespace {

constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr const char* kOther = "or name a file of your own in TROIKA_RUN_SECRET_FILE";

void start_sodium() {
  static const int started = ::sodium_init();
  TROIKA_CHECK(started >= 0, "libsodium cannot start");
}

[[noreturn]] void refuse_path(const std::string& what, const std::filesystem::path& path,
                              const std::string& got, const std::string& expected,
                              const std::string& hint) {
  throw Error("net", ErrorKind::usage,
              {.what = fmt::format("{} {} is not safe", what, path.string()),
               .got = got,
               .expected = expected,
               .hint = hint});
}

[[noreturn]] void fail_path(const std::string& action, const std::filesystem::path& path,
                            int error) {
  throw Error(
      "net", ErrorKind::failure,
      {.what = fmt::format("cannot {} {}", action, path.string()),
       .got = system_reason(error),
       .hint = fmt::format(
           "it holds this user's key for runs whose launcher passes no secret on; repair it, {}",
           kOther)});
}

std::string show_mode(mode_t mode) {
  return fmt::format("mode {:04o}", mode & 07777);
}

// Reads the secret from an open file. Throws if another user may read or replace the file.
Secret read_private(const Descriptor& file, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_system("net", "read " + path.string(), errno);
  const std::string what = "secret file";
  const std::string hint = fmt::format("chmod 600 {}", path.string());
  if (!S_ISREG(status.st_mode)) refuse_path(what, path, "no regular file", "a file", "");
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    refuse_path(what, path, fmt::format("owner {}", status.st_uid),
                fmt::format("{} (this user) or root", ::geteuid()), "");
  }
  if ((status.st_mode & kOthers) != 0) {
    refuse_path(what, path, show_mode(status.st_mode), "mode 0600", hint);
  }
  std::array<char, 256> text{};
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  if (size < 0) fail_system("net", "read " + path.string(), errno);
  const Secret secret =
      Secret::parse(std::string_view(text.data(), static_cast<size_t>(size)), path.string());
  ::sodium_memzero(text.data(), text.size());
  return secret;
}

void check_folder(const std::filesystem::path& folder) {
  struct stat status {};
  if (::lstat(folder.c_str(), &status) != 0) fail_path("use", folder, errno);
  const std::string what = "folder";
  if (!S_ISDIR(status.st_mode)) refuse_path(what, folder, "no folder", "a folder", kOther);
  if (status.st_uid != ::geteuid()) {
    refuse_path(what, folder, fmt::format("owner {}", status.st_uid),
                fmt::format("{} (this user)", ::geteuid()), kOther);
  }
  if ((status.st_mode & kOthers) != 0) {
    refuse_path(what, folder, show_mode(status.st_mode), "mode 0700",
                fmt::format("chmod 700 {}", folder.string()));
  }
}

// Writes a temporary file and links it to `path`, so that `path` is either complete or absent. Does
// nothing if another process created `path` first.
void make_key(const std::filesystem::path& path) {
  std::string draft = path.string() + ".XXXXXX";
  const Descriptor file(::mkostemp(draft.data(), O_CLOEXEC));  // creates it with mode 0600
  if (!file) fail_path("make", path, errno);
  const std::string text = Secret::random().to_hex() + "\n";
  const bool written =
      ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      ::fsync(file.get()) == 0;
  const int write_error = errno;
  const bool linked = written && ::link(draft.c_str(), path.c_str()) == 0;
  const int link_error = errno;
  ::unlink(draft.c_str());
  if (!written) fail_path("write", path, write_error);
  if (!linked && link_error != EEXIST) fail_path("make", path, link_error);
}

}  // namespace

Secret Secret::random() {
  start_sodium();
  Secret secret;
  ::randombytes_buf(secret.bytes_.data(), kSize);
  return secret;
}

Secret Secret::parse(std::string_view text, const std::string& source) {
  start_sodium();
  const size_t end = text.find_last_not_of(" \t\r\n");
  text = text.substr(0, end == std::string_view::npos ? 0 : end + 1);
  Secret secret;
  size_t size = 0;
  const char* stop = nullptr;
  const bool good = ::sodium_hex2bin(secret.bytes_.data(), kSize, text.data(), text.size(), nullptr,
                                     &size, &stop) == 0;
  if (!good || size != kSize || stop != text.data() + text.size()) {
    throw Error("net", ErrorKind::usage,
                {.what = fmt::format("{} holds no secret", source),
                 .got = fmt::format("{} characters", text.size()),
                 .expected = "64 hexadecimal digits",
                 .hint = "openssl rand -hex 32 makes one"});
  }
  return secret;
}

Secret::~Secret() {
  ::sodium_memzero(bytes_.data(), kSize);
}

std::string Secret::to_hex() const {
  std::string text(2 * kSize + 1, '\0');
  ::sodium_bin2hex(text.data(), text.size(), bytes_.data(), kSize);
  text.pop_back();
  return text;
}

Secret Secret::derive(std::string_view purpose, std::string_view context) const {
  Secret derived;
  // The length distinguishes ("ab", "c") from ("a", "bc").
  const std::string message = fmt::format("troika {} {}{}", purpose.size(), purpose, context);
  ::crypto_generichash(derived.bytes_.data(), kSize,
                       reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                       bytes_.data(), kSize);
  return derived;
}

bool operator==(const Secret& a, const Secret& b) {
  return ::sodium_memcmp(a.bytes_.data(), b.bytes_.data(), Secret::kSize) == 0;
}

Secret read_secret_file(const std::filesystem::path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) fail_system("net", fmt::format("read the secret file {}", path.string()), errno);
  return read_private(file, path);
}

Secret user_secret(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) fail_path("make", folder, errno);
  check_folder(folder);
  const auto path = folder / "run-key";
  for (int attempt = 0; attempt < 2; ++attempt) {
    const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file) return read_private(file, path);
    if (errno != ENOENT) fail_path("read", path, errno);
    make_key(path);
  }
  fail_path("read", path, ENOENT);
}

std::filesystem::path user_folder() {
  if (const char* config = std::getenv("XDG_CONFIG_HOME"); config && *config == '/') {
    return std::filesystem::path(config) / "troika";
  }
  const char* home = std::getenv("HOME");
  if (!home || !*home) {
    const passwd* user = ::getpwuid(::geteuid());
    home = user ? user->pw_dir : "/";
  }
  return std::filesystem::path(home) / ".config" / "troika";
}

}  // namespace troika::net
