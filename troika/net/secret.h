// The secret of a run. A process that holds it can join the run; no other process can.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace troika::net {

// 32 secret bytes. They never appear in errors or logs, and are wiped from memory on destruction.
class Secret {
 public:
  static constexpr size_t kSize = 32;

  // From the system's random number generator.
  static Secret random();
  // Parses 64 hexadecimal digits; ignores trailing white space. Throws Error(net, usage) that names
  // `source`, for example a variable, and shows nothing of the text.
  static Secret parse(std::string_view text, const std::string& source);

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();

  // To pass the secret to another process through its environment.
  std::string to_hex() const;
  // Derives another secret, from which this one cannot be computed: keyed BLAKE2b (RFC 7693) over
  // `purpose` and `context`.
  Secret derive(std::string_view purpose, std::string_view context) const;
  const unsigned char* data() const { return bytes_.data(); }
  // Constant-time comparison.
  friend bool operator==(const Secret& a, const Secret& b);

 private:
  Secret() = default;

  std::array<unsigned char, kSize> bytes_{};
};

// Reads the secret from a file. Throws Error(net, usage) that names the file unless it is a regular
// file that belongs to this user or root and that no other user may access. Throws Error(net,
// failure) if it cannot be read.
Secret read_secret_file(const std::filesystem::path& path);

// Returns this user's secret, from which secrets of runs are derived when the launcher provides
// none. It is stored in the file `run-key` (mode 0600) in `folder` (mode 0700), created at the
// first use. Processes that start at the same time get the same secret. Throws Error(net, usage)
// that names the folder or the file if it belongs to another user or other users may access it;
// Error(net, failure) if it cannot be created.
Secret user_secret(const std::filesystem::path& folder);

// Returns $XDG_CONFIG_HOME/troika, or else ~/.config/troika.
std::filesystem::path user_folder();

}  // namespace troika::net
