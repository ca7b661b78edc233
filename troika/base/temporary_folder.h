// Temporary folders of this process.
#pragma once

#include <filesystem>
#include <string>

namespace troika {

// Creates a folder with mode 0700 and a unique name that begins with `prefix`, in the system's
// temporary folder. Throws Error with the name on failure.
std::filesystem::path make_temporary_folder(const std::string& prefix);

// A uniquely named folder in the system's temporary folder. The destructor removes it with its
// content. The constructor throws Error with the name on failure.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace troika
