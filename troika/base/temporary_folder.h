// A folder for files that only this process needs.
#pragma once

#include <filesystem>
#include <string>

namespace troika {

// Makes a folder of mode 0700 with a fresh name that begins with `prefix`, below the system's
// folder for temporary files. Throws Error naming the folder it could not make.
std::filesystem::path make_temporary_folder(const std::string& prefix);

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
