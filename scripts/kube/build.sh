#!/bin/bash
# Builds the program of Kubernetes from Debian's sources: build.sh FOLDER VERSION; the result is FOLDER/hyper.
# FOLDER/sources.sources names the archives. Debian's source package has the upstream tree with everything it needs but
# one generated file. The reflect2 in it crashes the API server when it is built with this Go, hence Debian's own.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")") work=$1 version=$2
mkdir -p "$work"/{lists/partial,cache/archives/partial,packages,system}
cat > "$work/apt.conf" <<CONF
Dir::Etc::sourcelist "$work/sources.sources";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/lists";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
CONF
export APT_CONFIG=$work/apt.conf
apt-get update -qq
cd "$work/packages"
apt-get download -qq golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev
for package in *.deb; do dpkg-deb -x "$package" "$work/system"; done
apt-get source -qq --download-only "kubernetes=$version"
tree=$work/gopath/src/k8s.io/kubernetes
mkdir -p "$tree"
tar xzf kubernetes_*.orig.tar.gz -C "$tree" --strip-components=1
reflect2=$tree/vendor/github.com/modern-go/reflect2
rm -rf "$reflect2"
mkdir "$reflect2"
cp "$work"/system/usr/share/gocode/src/github.com/modern-go/reflect2/*.{go,s} "$reflect2"
rm -f "$reflect2"/*_test.go
mkdir "$tree/cmd/hyper"
cp "$here/main.go" "$tree/cmd/hyper/"

export GOROOT=$work/system/usr/lib/go-1.19 GOPATH=$work/gopath GOCACHE=$work/gocache
export PATH=$GOROOT/bin:$PATH GO111MODULE=off GOFLAGS= GOPROXY=off CGO_ENABLED=0
export GOGC=400  # fewer collections, and below no debugging data: a third less processor time
cd "$tree"
go build -p 2 -o "$work/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
own=$(ls -d vendor/k8s.io/*/ | grep -vE 'code-generator|sample-apiserver|gengo|kube-openapi')
described=$(grep -rl --include=*.go '+k8s:openapi-gen=' pkg cmd plugin $own | xargs -n1 dirname | sort -u)
"$work/openapi-gen" -i "$(sed 's#^#k8s.io/kubernetes/#' <<< "$described" | paste -sd,)" \
  -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi --output-base "$GOPATH/src" \
  -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations"
release=${version#*really} release=${release%%-*}
flags="-s -w"
for package in component-base/version client-go/pkg/version; do
  for setting in gitVersion=v$release gitMajor=1 gitMinor=20 gitTreeState=clean buildDate=2021-01-13T00:00:00Z; do
    flags="$flags -X k8s.io/kubernetes/vendor/k8s.io/$package.$setting"
  done
done
go build -tags "providerless dockerless" -p 2 -trimpath -gcflags=all=-dwarf=false -ldflags "$flags" -o "$work/hyper" k8s.io/kubernetes/cmd/hyper
