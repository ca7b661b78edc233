// The secret of a run: who holds it takes part in the run, and nobody else.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace troika::net {

// 32 bytes that never show in errors or logs, and are wiped from memory at their end.
class Secret {
 public:
  static constexpr size_t kSize = 32;

  // From the system's generator of random numbers.
  static Secret random();
  // From 64 hexadecimal digits; white space after them is ignored. Throws Error(net, usage) that
  // names `source`, for example a variable, and shows nothing of the text.
  static Secret parse(std::string_view text, const std::string& source);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  // For the environment of a process that is to share it.
  std::string to_hex() const;
  // Another secret that tells nothing of this one: keyed BLAKE2b of both texts (RFC 7693).
  Secret derive(std::string_view purpose, std::string_view context) const;
  const unsigned char* data() const { return bytes_.data(); }
  // In a time that does not depend on the bytes.
  friend bool operator==(const Secret& a, const Secret& b);

 private:
  Secret() = default;

  std::array<unsigned char, kSize> bytes_{};
};

// The secret in a file. Throws Error(net, usage) that names the file unless it is a regular file of
// this user or of root which nobody else may read or write.
Secret read_secret_file(const std::filesystem::path& path);

// The secret of this user that all runs can be derived from where no launcher hands one down: the
// file `run-key` of mode 0600 in `folder` of mode 0700, made at the first use; processes that begin
// at the same time get the same one. Throws Error(net, usage) that names the folder or the file
// when it belongs to another user or others may use it, Error(net, failure) when it cannot be made.
Secret user_secret(const std::filesystem::path& folder);

// This user's: $XDG_CONFIG_HOME/troika, else ~/.config/troika.
std::filesystem::path user_folder();

}  // namespace troika::net
