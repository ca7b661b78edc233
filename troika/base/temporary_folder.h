// A folder for files that only this process needs.
#pragma once

#include <filesystem>
#include <string>

namespace troika {

// Made with a name of its own below the system's folder for temporary files; gone, with all in it,
// when this object is. The constructor throws Error naming the folder it could not make.
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
