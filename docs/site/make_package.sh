#!/bin/sh
# Makes a package of the node side: sh make_package.sh deb|rpm [FOLDER]. It holds what `whorl campaign pack` packs, in
# /opt/whorl-node, with the command /usr/bin/whorl. Nodes need the Python that made it, and no network.
# Needs dpkg-deb (deb) or rpmbuild (rpm), and whorl itself as $WHORL or on the PATH.
set -eu
kind=${1:-} folder=${2:-.}
case $kind in
    deb | rpm) ;;
    *)
        echo "say deb or rpm: sh make_package.sh deb [FOLDER]" >&2
        exit 2
        ;;
esac
whorl=${WHORL:-whorl}
version=$("$whorl" --version | sed 's/.* //')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/opt" "$work/root/usr/bin" "$folder"
"$whorl" campaign pack "$work/node.tar.gz" >/dev/null
tar -xzf "$work/node.tar.gz" -C "$work/root/opt"
ln -s /opt/whorl-node/bin/whorl "$work/root/usr/bin/whorl"
# Python writes compiled files beside the package's own; they must go with it.
clean='[ "$1" = upgrade ] || [ "$1" = 1 ] || rm -rf /opt/whorl-node'
python=$(sed -n 's/.*needs Python \([0-9.]*\):.*/\1/p' "$work/root/opt/whorl-node/bin/whorl" | head -n 1)
case $kind in
    deb)
        mkdir "$work/root/DEBIAN"
        printf '%s\n' "Package: whorl-node" "Version: $version" "Architecture: $(dpkg --print-architecture)" \
            "Depends: python3 (>= $python), python3 (<< ${python%%.*}.$((${python#*.} + 1)))" \
            "Maintainer: root <root@localhost>" \
            "Description: measures and reads the GPUs of this node" >"$work/root/DEBIAN/control"
        printf '#!/bin/sh\n%s\n' "$clean" >"$work/root/DEBIAN/postrm"
        chmod 755 "$work/root/DEBIAN/postrm"
        dpkg-deb --root-owner-group -Zgzip -z3 --build "$work/root" "$folder" >/dev/null
        ;;
    rpm)
        cat >"$work/whorl-node.spec" <<SPEC
Name: whorl-node
Version: $version
Release: 1
Summary: Measures and reads the GPUs of this node
License: Apache-2.0
AutoReqProv: no
Requires: python(abi) = $python
%global __os_install_post %{nil}
%global _build_id_links none
%define debug_package %{nil}
%define _binary_payload w3.gzdio
%description
%summary
%install
cp -a "$work/root/." "%{buildroot}"
%postun
$clean
%files
%defattr(-,root,root)
/opt/whorl-node
/usr/bin/whorl
SPEC
        rpmbuild --quiet --define "_topdir $work/rpm" -bb "$work/whorl-node.spec"
        cp "$work"/rpm/RPMS/*/*.rpm "$folder"
        ;;
esac
