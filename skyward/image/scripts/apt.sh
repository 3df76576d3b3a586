# apt PACKAGE...: installs Debian packages. Their archives stay in cache mounts, where Debian's images would remove them.
# Translated descriptions, which are as large as the rest of the lists, are not fetched.
echo '#clear DPkg::Post-Invoke; #clear APT::Update::Post-Invoke; Acquire::Languages "none";' > /run/skyward/keep-archives
apt-get -c /run/skyward/keep-archives update -qq
DEBIAN_FRONTEND=noninteractive apt-get -c /run/skyward/keep-archives install -y -qq --no-install-recommends "$@"
. /run/steps/forget_apt.sh
